//! Mounts and their directories, as the kernel lists them.

use std::path::Path;

use super::record::AttachmentRecord;

/// The directory where forebay has mounted an attachment, if something is still mounted there.
pub fn in_use(record: &AttachmentRecord) -> Option<&Path> {
    record.mounted.as_deref().filter(|dir| mounted_at(dir).is_some())
}

/// The source of what is mounted at exactly this directory, if anything is.
pub fn mounted_at(dir: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let at = unescape(words.nth(4)?);
        let source = line.split(" - ").nth(1)?.split(' ').nth(1)?;
        (Path::new(&at) == dir).then(|| unescape(source))
    })
}

/// A path as the kernel writes it there: blanks and the like are in octal, as `\040`.
fn unescape(text: &str) -> String {
    let mut out = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        (rest, _) = match code.filter(|_| *first == b'\\') {
            Some(code) => (&behind[3..], out.push(code)),
            None => (behind, out.push(*first)),
        };
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_the_kernel_are_read() {
        assert_eq!(unescape(r"/a\040b\134c"), r"/a b\c");
        assert_eq!(unescape(r"/a\0"), r"/a\0");
        assert_eq!(unescape(r"\999"), r"\999");
        assert!(mounted_at(Path::new("/proc")).is_some());
        assert!(mounted_at(Path::new("/proc/self")).is_none());
    }
}
