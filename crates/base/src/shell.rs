//! Commands that people type as they are shown.

/// A path or a name as a shell reads it as one word.
pub fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._/:+,%@=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_shell_would_cut_is_quoted() {
        for (text, word) in [
            ("/dev/sda,emulate=hdd", "/dev/sda,emulate=hdd"),
            ("a b.img", "'a b.img'"),
            ("it's", r"'it'\''s'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(text), word);
        }
    }
}
