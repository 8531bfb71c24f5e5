//! Keys that server and clients have agreed on, in a file as `psktool`, qemu and nbdkit have it: a
//! line `NAME:HEX` for each client.

use std::collections::BTreeMap;
use std::path::Path;

use crate::files::{FileError, read_secret};

/// Bytes of a key. A shorter one could be guessed; OpenSSL takes no longer one.
const LENGTHS: std::ops::RangeInclusive<usize> = 16..=256;
/// Bytes of a name, the most that OpenSSL takes.
const MAX_NAME: usize = 128;

/// Keys by the names of clients.
pub(crate) type Keys = BTreeMap<Vec<u8>, Vec<u8>>;

/// Reads the file. Errors name the line; they never show a key.
pub(crate) fn read_keys(path: &Path) -> Result<Keys, FileError> {
    let bytes = read_secret(path)?;
    parse(&bytes).map_err(|(line, why)| FileError::new(path, format_args!("line {line}: {why}")))
}

fn parse(bytes: &[u8]) -> Result<Keys, (usize, String)> {
    let mut keys = Keys::new();
    for (number, line) in (1..).zip(bytes.split(|b| *b == b'\n')) {
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let wrong = |why: &str| (number, why.to_owned());
        let Some(colon) = line.iter().position(|b| *b == b':') else {
            return Err(wrong("it is not NAME:KEY, with the key in hexadecimal"));
        };
        let (name, key) = (&line[..colon], &line[colon + 1..]);
        let plain = std::str::from_utf8(name).is_ok_and(|n| !n.contains(char::is_control));
        if !plain || !(1..=MAX_NAME).contains(&name.len()) {
            return Err(wrong("a name has 1 to 128 bytes of UTF-8, without control characters"));
        }
        let Some(key) = hex(key).filter(|key| LENGTHS.contains(&key.len())) else {
            return Err(wrong("a key has 32 to 512 hexadecimal digits (16 to 256 bytes)"));
        };
        if keys.insert(name.to_vec(), key).is_some() {
            return Err(wrong("the name has a key already"));
        }
    }
    if keys.is_empty() {
        return Err((1, "there is no key in the file".into()));
    }
    Ok(keys)
}

fn hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |b: u8| char::from(b).to_digit(16);
    let pairs = text.chunks(2).map(|pair| match *pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_names_and_keys() {
        let key = "0123456789abcdefABCDEF0123456789";
        let keys = parse(format!("# keys\n\nvm 1:{key}\r\nb:{key}{key}").as_bytes()).unwrap();
        assert_eq!(keys.len(), 2);
        assert_eq!(keys[&b"vm 1"[..]][..3], [0x01, 0x23, 0x45]);
        assert_eq!(keys[&b"b"[..]].len(), 32);
    }

    #[test]
    fn what_is_wrong_is_named_and_no_key_is_shown() {
        let key = "00112233445566778899aabbccddeeff";
        for (text, line, word) in [
            (String::new(), 1, "no key"),
            ("a".into(), 1, "NAME:KEY"),
            (format!("a:{key}\nb:{}", &key[1..]), 2, "digits"),
            (format!("a:{}", &key[2..]), 1, "digits"),
            (format!("a:{key}x0"), 1, "digits"),
            (format!(":{key}"), 1, "name"),
            (format!("a\u{1}:{key}"), 1, "name"),
            (format!("{}:{key}", "n".repeat(129)), 1, "name"),
            (format!("a:{key}\na:{key}"), 2, "already"),
        ] {
            let (at, why) = parse(text.as_bytes()).unwrap_err();
            assert!(at == line && why.contains(word), "{text:?}: line {at}: {why}");
            assert!(!why.contains("0011"), "{why}");
        }
    }
}
