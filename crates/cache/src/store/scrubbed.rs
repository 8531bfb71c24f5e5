//! Counts of what scrubs found, and the cache's part of the newest one.

use std::cell::Cell;

use base::{ErrorKind, Result, StorageError};
use model::scrub::{CacheScrub, CacheScrubPart, ScrubState};
use pool::NewestScrub;

/// The cache's part of the newest scrub, while it goes on. It begins, rests, goes on and is
/// cancelled with the pool's. It may outlast that, and then it does so by itself.
#[derive(Clone, Copy, Default)]
pub(crate) struct ScrubPart {
    /// Counts the parts that have begun.
    pub number: u64,
    pub state: ScrubState,
    /// Bytes that it will have verified in the end, about.
    pub all: u64,
    /// The counts when the part began.
    before: CacheScrub,
    /// Bytes a second, if it was told so after the pool's had ended.
    pub rate: Option<u64>,
    /// The newest scrub of the pool, and what it did, when this followed it last.
    followed: Option<(u64, ScrubState)>,
}

impl ScrubPart {
    /// True if it is not over.
    pub fn is_under_way(&self) -> bool {
        matches!(self.state, ScrubState::Running | ScrubState::Paused)
    }

    /// Does what the newest scrub of the pool has done meanwhile. One of a single device of the
    /// pool has no part of the cache. `left`: bytes in the cache that it has before it.
    fn follow(&mut self, newest: NewestScrub, left: u64, found: CacheScrub) {
        if self.is_under_way() {
            self.all = self.verified(&found) + left;
        }
        let before = self.followed.replace((newest.turn, newest.state));
        if !newest.is_whole || before == self.followed {
            return;
        }
        match before {
            None if newest.state == ScrubState::Done => {}
            // The scrub went on and came to its end between two looks.
            Some((turn, ScrubState::Paused))
                if turn == newest.turn && newest.state == ScrubState::Done =>
            {
                self.follow_change(ScrubState::Running);
            }
            Some((turn, _)) if turn == newest.turn => self.follow_change(newest.state),
            // The pool may be done long before a large cache is.
            _ => {
                let state = match newest.state {
                    ScrubState::Done => ScrubState::Running,
                    state => state,
                };
                *self = ScrubPart {
                    number: self.number + 1,
                    state,
                    all: left,
                    before: found,
                    rate: None,
                    followed: self.followed,
                };
            }
        }
    }

    /// Bytes that it has verified.
    fn verified(&self, found: &CacheScrub) -> u64 {
        found.verified_bytes - self.before.verified_bytes
    }

    fn follow_change(&mut self, to: ScrubState) {
        match to {
            ScrubState::Running | ScrubState::Paused | ScrubState::Cancelled
                if self.is_under_way() =>
            {
                self.state = to;
            }
            _ => {}
        }
    }
}

/// Counts of what scrubs have found, while more is found, and the part that goes on.
#[derive(Default)]
pub(crate) struct ScrubCounts {
    found: Cell<CacheScrub>,
    part: Cell<ScrubPart>,
}

impl ScrubCounts {
    /// The counts so far.
    pub fn found(&self) -> CacheScrub {
        self.found.get()
    }

    /// Counts what was found now.
    pub fn count(&self, count: impl FnOnce(&mut CacheScrub)) {
        let mut found = self.found.get();
        count(&mut found);
        self.found.set(found);
    }

    /// The part as it is now that the newest scrub of the pool is so.
    pub fn follow(&self, newest: NewestScrub, left: u64) -> ScrubPart {
        let mut part = self.part.get();
        part.follow(newest, left, self.found());
        self.part.set(part);
        part
    }

    /// The part goes over everything from the beginning, again if it was cut short.
    pub fn begin(&self) {
        let part = self.part.get();
        self.part.set(ScrubPart { before: self.found(), ..part });
    }

    /// The part has gone over everything.
    pub fn complete(&self) {
        self.count(|found| found.completed += 1);
        let part = self.part.get();
        let all = part.verified(&self.found());
        self.part.set(ScrubPart { state: ScrubState::Done, all, ..part });
    }

    /// Turns the part from one state to another. Fails if it is not in the first.
    pub fn turn_to(&self, from: &[ScrubState], to: ScrubState, rate: Option<u64>) -> Result<()> {
        let part = self.part.get();
        if !from.contains(&part.state) {
            let text = "the cache is in no such part of a scrub; see forebay scrub status";
            return Err(StorageError::new(ErrorKind::Invalid, text));
        }
        self.part.set(ScrubPart { state: to, rate: rate.or(part.rate), ..part });
        Ok(())
    }

    /// The part cannot go on.
    pub fn give_up(&self) -> ScrubPart {
        let part = ScrubPart { state: ScrubState::Cancelled, ..self.part.get() };
        self.part.set(part);
        part
    }

    /// The part, for people.
    pub fn status(&self) -> CacheScrubPart {
        let (part, found) = (self.part.get(), self.found());
        let verified_bytes = part.verified(&found);
        CacheScrubPart {
            state: part.state,
            verified_bytes,
            all_bytes: part.all.max(verified_bytes),
            dropped: found.dropped - part.before.dropped,
            lost: found.lost - part.before.lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(turn: u64, state: ScrubState) -> NewestScrub {
        NewestScrub { turn, state, is_whole: true, rate: 0 }
    }

    #[test]
    fn it_follows_the_pool_and_may_outlast_it() {
        let counts = ScrubCounts::default();
        let state = |turn, state| counts.follow(newest(turn, state), 100).state;
        assert_eq!(state(0, ScrubState::Done), ScrubState::Never, "it was before");
        assert_eq!(state(1, ScrubState::Running), ScrubState::Running);
        assert_eq!(state(1, ScrubState::Paused), ScrubState::Paused);
        assert_eq!(state(1, ScrubState::Running), ScrubState::Running);
        assert_eq!(state(1, ScrubState::Done), ScrubState::Running);
        let running = [ScrubState::Running];
        counts.turn_to(&running, ScrubState::Paused, None).expect("pause");
        assert!(counts.turn_to(&running, ScrubState::Paused, None).is_err());
        assert_eq!(state(1, ScrubState::Done), ScrubState::Paused);
        // A scrub of one device changes nothing.
        let only = NewestScrub { is_whole: false, ..newest(2, ScrubState::Running) };
        assert_eq!(counts.follow(only, 100).state, ScrubState::Paused);
        // One that was over before it was seen has begun here.
        assert_eq!(state(3, ScrubState::Done), ScrubState::Running);
        counts.complete();
        assert_eq!(state(3, ScrubState::Done), ScrubState::Done);
        assert_eq!(state(4, ScrubState::Running), ScrubState::Running);
        assert_eq!(state(4, ScrubState::Cancelled), ScrubState::Cancelled);
    }

    #[test]
    fn it_shows_what_this_part_has_found() {
        let counts = ScrubCounts::default();
        counts.count(|found| found.verified_bytes += 50);
        counts.follow(newest(0, ScrubState::Paused), 10);
        assert_eq!(
            counts.status().state,
            ScrubState::Paused,
            "it rested when the cache was opened"
        );
        counts.count(|found| (found.verified_bytes, found.dropped) = (65, 1));
        let status = counts.status();
        assert_eq!((status.verified_bytes, status.all_bytes, status.dropped), (15, 15, 1));
    }
}
