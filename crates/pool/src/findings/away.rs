//! Which devices are out of use, and since when.

use std::collections::BTreeMap;

use base::Instant;

/// Since when each device is out of use, by its row and how often it has gone out of use.
#[derive(Default)]
pub(crate) struct AwaySince(BTreeMap<(usize, u32), Instant>);

impl AwaySince {
    /// Notes the devices that are out of use now. One that was noted before keeps its time.
    pub fn look(&mut self, now: Instant, devices: impl Iterator<Item = (usize, u32)>) {
        let before = std::mem::take(&mut self.0);
        self.0 = devices.map(|key| (key, before.get(&key).copied().unwrap_or(now))).collect();
    }

    /// Since when the device of this row is away.
    pub fn since(&self, row: usize) -> Option<Instant> {
        self.0.iter().find(|((r, _), _)| *r == row).map(|(_, &since)| since)
    }
}

#[cfg(test)]
mod tests {
    use base::Duration;

    use super::*;

    #[test]
    fn a_device_that_was_there_between_is_away_anew() {
        let mut away = AwaySince::default();
        let at = |s| Instant::default().after(Duration::from_secs(s));
        away.look(at(1), [(3, 0), (5, 2)].into_iter());
        away.look(at(2), [(3, 0)].into_iter());
        assert_eq!((away.since(3), away.since(5)), (Some(at(1)), None));
        away.look(at(3), [(3, 1), (5, 2)].into_iter());
        assert_eq!((away.since(3), away.since(5)), (Some(at(3)), Some(at(3))));
    }
}
