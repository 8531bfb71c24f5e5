//! How far moves of chunks are. Plain data.

use base::{BLOCK_U64, Instant};
use format::page::Chunk;
use rt::FileId;

use super::away::Away;
use super::speed::Speed;

/// What is being moved, and how far that is.
#[derive(Clone, Debug, serde::Serialize)]
pub struct MovesStatus {
    /// `none`, `running`, `paused`, or `waiting` for something.
    pub state: &'static str,
    /// Chunks are spread evenly over the devices.
    pub balancing: bool,
    /// Devices that leave the pool, by their paths, or their uuids if they are missing.
    pub leaving: Vec<String>,
    /// Devices that came back, or are coming back, and lack something still.
    pub behind: Vec<String>,
    /// Block groups of which they lack something.
    pub behind_groups: u64,
    /// Bytes that are yet to be copied, but for what those lack.
    pub left_bytes: u64,
    /// Bytes that were copied since the last command, or since the pool was opened.
    pub copied_bytes: u64,
    /// Bytes a second over the last seconds.
    pub rate: u64,
    /// Seconds that are left at this rate.
    pub left_s: Option<u64>,
    /// What it waits for, or the last error.
    pub trouble: Option<String>,
}

/// Moves of chunks.
#[derive(Default)]
pub(crate) struct Moves {
    paused: bool,
    balancing: bool,
    copied: u64,
    speed: Speed,
    /// Files of devices that were removed.
    removed: Vec<FileId>,
    trouble: Option<String>,
    away: Away,
    /// Chunks that are being filled, and how often that was begun.
    filling: (Vec<Chunk>, u64),
}

impl Moves {
    /// Of a pool that was opened.
    pub fn new(balancing: bool) -> Moves {
        Moves { balancing, ..Moves::default() }
    }

    /// Something else is to be moved.
    pub fn begin(&mut self) {
        let removed = std::mem::take(&mut self.removed);
        let (paused, balancing) = (self.paused, self.balancing);
        let (away, filling) = (std::mem::take(&mut self.away), std::mem::take(&mut self.filling));
        *self = Moves { paused, balancing, removed, away, filling, ..Moves::default() };
    }

    /// Chunks are spread evenly over the devices.
    pub fn is_balancing(&self) -> bool {
        self.balancing
    }

    /// They are to be, or that has ended.
    pub fn set_balancing(&mut self, balancing: bool) {
        self.balancing = balancing;
    }

    pub fn set_paused(&mut self, paused: bool) {
        (self.paused, self.speed) = (paused, Speed::default());
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Devices that are out of use.
    pub fn away(&self) -> &Away {
        &self.away
    }

    /// To note which are.
    pub fn away_mut(&mut self) -> &mut Away {
        &mut self.away
    }

    /// Copies go to these chunks from now on, which nothing else writes to.
    pub fn begin_fill(&mut self, chunks: Vec<Chunk>) {
        self.filling = (chunks, self.filling.1 + 1);
    }

    /// All of them are written.
    pub fn end_fill(&mut self) {
        self.filling.0.clear();
    }

    /// Chunks that are being filled, and how often that was begun.
    pub fn filling(&self) -> (&[Chunk], u64) {
        (&self.filling.0, self.filling.1)
    }

    /// Counts blocks that were copied.
    pub fn copied(&mut self, now: Instant, blocks: u64) {
        self.copied += blocks * BLOCK_U64;
        self.speed.count(now, self.copied);
    }

    /// A device was removed, and its file is not used any more.
    pub fn removed(&mut self, file: FileId) {
        self.removed.push(file);
    }

    /// Such files, each once.
    pub fn take_removed(&mut self) -> Vec<FileId> {
        std::mem::take(&mut self.removed)
    }

    /// It cannot go on for now.
    pub fn stopped_by(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// What some of it waits for, if anything.
    pub fn waits_for(&mut self, what: Option<&'static str>) {
        self.trouble = what.map(|what| format!("waiting for {what}"));
    }

    /// `any`: a block group is not what it should be; so many bytes are to be copied for it. Which
    /// devices leave; which lack something, and of how many groups.
    pub fn status(
        &self,
        now: Instant,
        (any, left_bytes): (bool, u64),
        leaving: Vec<String>,
        (behind, behind_groups): (Vec<String>, u64),
    ) -> MovesStatus {
        let any = any || !leaving.is_empty() || !behind.is_empty() || self.balancing;
        let state = match (any, self.paused, &self.trouble) {
            (false, _, _) => "none",
            (true, true, _) => "paused",
            (true, false, Some(_)) => "waiting",
            (true, false, None) => "running",
        };
        let rate = if state == "running" { self.speed.now(now) } else { 0 };
        MovesStatus {
            state,
            balancing: self.balancing,
            leaving,
            behind,
            behind_groups,
            left_bytes,
            copied_bytes: self.copied,
            rate,
            left_s: (rate > 0).then(|| left_bytes.div_ceil(rate)),
            trouble: self.trouble.clone().filter(|_| state == "waiting"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_follows_from_what_is_left_and_what_is_in_the_way() {
        let mut moves = Moves::default();
        let now = Instant::default().after(base::Duration::from_secs(9));
        let state = |moves: &Moves, left, leaving: &[&str]| {
            let leaving = leaving.iter().map(|s| String::from(*s)).collect();
            moves.status(now, (left > 0, left), leaving, (Vec::new(), 0)).state
        };
        assert_eq!(state(&moves, 0, &[]), "none");
        assert_eq!(state(&moves, 1, &[]), "running");
        assert_eq!(state(&moves, 0, &["a"]), "running");
        moves.waits_for(Some("room"));
        assert_eq!(state(&moves, 1, &["a"]), "waiting");
        let trouble = moves.status(now, (true, 1), Vec::new(), (Vec::new(), 0)).trouble;
        assert_eq!(trouble.as_deref(), Some("waiting for room"));
        moves.set_paused(true);
        assert_eq!(state(&moves, 1, &[]), "paused");
        moves.begin();
        assert_eq!(state(&moves, 1, &[]), "paused", "a new command does not end the pause");
        moves.set_paused(false);
        assert_eq!(state(&moves, 1, &[]), "running");
        assert_eq!(state(&Moves::new(true), 0, &[]), "running");
    }
}
