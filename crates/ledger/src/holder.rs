//! Names of those whose work keeps requests waiting.
//!
//! Each request compares and copies such names many times. So a name is a small number, by a table
//! of the thread: an engine is one thread.

use std::cell::RefCell;

thread_local! {
    static NAMES: RefCell<Vec<&'static str>> = const { RefCell::new(Vec::new()) };
}

/// The work that keeps a request waiting: a class of I/O, or a job. The value means something in
/// the thread that has made it only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Holder(u8);

impl Holder {
    /// The holder is not known, or does not matter.
    pub const NONE: Holder = Holder(0);

    /// The name of other requests of clients.
    pub const OTHER_REQUESTS: &'static str = "other requests";

    /// The name of a flush of a device.
    pub const DEVICE_FLUSH: &'static str = "a device flush";

    /// The holder of this name. Names are those of jobs and classes; there are a few dozen. Names
    /// that find no room give a holder without a name.
    pub fn of(name: &'static str) -> Holder {
        if name.is_empty() {
            return Holder::NONE;
        }
        NAMES.with_borrow_mut(|names| {
            let known = names.iter().position(|n| std::ptr::eq(*n, name) || *n == name);
            let at = known.unwrap_or_else(|| {
                names.push(name);
                names.len() - 1
            });
            Holder(u8::try_from(at + 1).unwrap_or(0))
        })
    }

    /// The name of the holder; empty if it is not known.
    pub fn name(self) -> &'static str {
        let at = usize::from(self.0).checked_sub(1);
        at.and_then(|at| NAMES.with_borrow(|names| names.get(at).copied())).unwrap_or_default()
    }
}

impl std::fmt::Debug for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_number() {
        let commit = Holder::of("commit");
        assert_eq!(commit, Holder::of(String::from("commit").leak()));
        assert_ne!(commit, Holder::of("journal"));
        assert_eq!((commit.name(), Holder::NONE.name()), ("commit", ""));
        assert_eq!(Holder::of(""), Holder::NONE);
        for i in 0..400 {
            let name: &'static str = format!("name {i}").leak();
            let held = Holder::of(name).name();
            assert!(held == name || held.is_empty());
        }
        assert_eq!(commit.name(), "commit");
    }
}
