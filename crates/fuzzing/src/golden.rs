//! Blocks of the pool's golden images, as seeds.

use std::fs;
use std::path::{Path, PathBuf};

/// The texts of all golden images. Errors: the sources are not where they were at the build.
fn images() -> Vec<String> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../pool/tests/golden");
    let below = |dir: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).expect("the sources are here");
        let mut paths: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
        paths.sort();
        paths
    };
    let versions = below(&golden).into_iter().filter(|path| path.is_dir());
    let files = versions.flat_map(|version| below(&version));
    files.map(|path| fs::read_to_string(path).expect("a golden image")).collect()
}

/// A block of an image: an offset, and words in hexadecimal, each with `*` and how often it comes
/// where that is more than once.
fn block(line: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in line.split(' ').skip(1) {
        let (digits, times) = word.split_once('*').unwrap_or((word, "1"));
        let times = times.parse().expect("a number");
        let pair = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("two digits");
        let one: Vec<u8> = (0..digits.len()).step_by(2).map(pair).collect();
        bytes.extend(one.repeat(times));
    }
    bytes
}

/// The blocks that begin with `magic`.
pub fn blocks_of(magic: &[u8]) -> Vec<Vec<u8>> {
    let texts = images();
    let lines = texts.iter().flat_map(|text| text.lines().skip(1));
    lines.map(block).filter(|block| block.starts_with(magic)).collect()
}

/// Records of the nodes: the length of the key, the key, the value. At most four of each node.
pub fn records() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for node in blocks_of(b"FBnd") {
        let (prefix, body) = (&node[40..40 + usize::from(node[5])], &node[72..]);
        let number = |at: usize| usize::from(u16::from_le_bytes([body[at], body[at + 1]]));
        let count = usize::from(u16::from_le_bytes([node[6], node[7]]));
        for i in 0..count.min(4) {
            let at = number(i * 4);
            let (suffix, len) = (usize::from(body[at]), number(at + 1));
            let mut record = vec![(prefix.len() + suffix) as u8];
            record.extend_from_slice(prefix);
            record.extend_from_slice(&body[at + 3..at + 3 + suffix + len]);
            all.push(record);
        }
    }
    all
}
