//! Texts for people: which of many like events are told, and numbers of things.

/// True for the first few of `n` like events, then for ever fewer, so that a device that goes bad
/// does not fill the log. All of them are counted somewhere.
pub fn worth_telling(n: u64) -> bool {
    n <= 8 || n.is_power_of_two()
}

/// A number of things in words: `1 copy`, `2 copies`.
pub fn counted(n: u64, one: &str, more: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { more })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_many() {
        let copies = |n| counted(n, "copy", "copies");
        assert_eq!([copies(0), copies(1), copies(2)], ["0 copies", "1 copy", "2 copies"]);
    }
}
