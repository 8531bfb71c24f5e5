//! What a command line says of snapshots: one, or all from one to another.

use model::snapshot::{Snapshot, SnapshotName};

/// The mark between the first snapshot and the last. No name of a snapshot has it.
const TO: &str = "..";

/// One snapshot, `VOLUME@NAME`, or some, `VOLUME@FIRST..LAST`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotRange(SnapshotName);

impl SnapshotRange {
    /// Reads what was typed.
    pub fn parse(text: &str) -> Result<SnapshotRange, String> {
        let name: SnapshotName = text.parse()?;
        match name.name.starts_with(TO) || name.name.ends_with(TO) {
            true => Err(format!("{text:?} lacks an end: a range is as vm1@monday..friday")),
            false => Ok(SnapshotRange(name)),
        }
    }

    /// The names of the snapshots that are meant. `all`: those that there are, with those of a
    /// volume in the order in which they were taken.
    pub fn of(&self, all: &[Snapshot]) -> Result<Vec<String>, String> {
        let SnapshotRange(SnapshotName { volume, name }) = self;
        if !name.contains(TO) {
            // The server says so of one that is not there.
            return Ok(vec![self.0.to_string()]);
        }
        let own: Vec<&str> =
            all.iter().filter(|s| s.volume == *volume).map(|s| s.name.as_str()).collect();
        let at = |name: &str| own.iter().position(|own| *own == name);
        // A name may begin or end with a dot, and so the mark may stand in two places.
        let mut ends = (1..name.len()).filter_map(|i| {
            let (first, rest) = name.split_at_checked(i)?;
            Some((at(first)?, at(rest.strip_prefix(TO)?)?))
        });
        match ends.next() {
            Some((first, last)) if first <= last => {
                Ok(own[first..=last].iter().map(|name| format!("{volume}@{name}")).collect())
            }
            Some((first, last)) => Err(format!(
                "{:?} was taken after {:?}: a range begins with the one that was taken first",
                own[first], own[last]
            )),
            None => Err(format!(
                "{volume} has no snapshots that are the ends of {name:?}; see forebay snapshot list"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Snapshot> {
        let one = |(volume, name): &(&str, &str)| Snapshot {
            volume: (*volume).into(),
            name: (*name).into(),
            ..Snapshot::default()
        };
        let names = [("v", "z"), ("w", "q"), ("v", "a."), ("v", "a"), ("v", ".b"), ("x@y", "1")];
        names.iter().map(one).collect()
    }

    fn of(text: &str) -> Result<Vec<String>, String> {
        SnapshotRange::parse(text)?.of(&all())
    }

    #[test]
    fn a_range_goes_by_the_order_in_which_they_were_taken() {
        assert_eq!(of("v@z..a").unwrap(), ["v@z", "v@a.", "v@a"]);
        assert_eq!(of("v@z..z").unwrap(), ["v@z"]);
        assert_eq!(of("x@y@1..1").unwrap(), ["x@y@1"]);
        assert_eq!(of("v@a...b").unwrap(), ["v@a", "v@.b"]);
        assert_eq!(of("v@missing").unwrap(), ["v@missing"]);
    }

    #[test]
    fn what_is_no_range_is_refused() {
        for (text, why) in [
            ("v", "names no snapshot"),
            ("v@..a", "lacks an end"),
            ("v@a..", "lacks an end"),
            ("v@a..z", "taken after"),
            ("v@z..nothing", "snapshot list"),
            ("v@z..q", "snapshot list"),
        ] {
            let e = of(text).unwrap_err();
            assert!(e.contains(why), "{text}: {e}");
        }
    }
}
