//! The progress of moves of chunks. Plain data.

use base::{BLOCK_U64, Instant};
use format::page::Chunk;
use model::moves::{MovesEnd, MovesOutcome, MovesState, MovesStatus};
use rt::FileId;
use rt::sync::Event;

use super::away::AwaySince;
use super::spares::TakenSpares;
use super::speed::Speed;

/// The work of moves that is left.
#[derive(Clone, Default, Debug)]
pub(crate) struct MoveBacklog {
    /// A block group does not have the chunks that it should have.
    pub any: bool,
    /// See the fields of [`MovesStatus`].
    pub left_bytes: u64,
    pub leaving: Vec<String>,
    pub behind: Vec<String>,
    pub behind_groups: u64,
    pub fewest_copies: Option<u8>,
}

/// Moves of chunks.
#[derive(Default)]
pub(crate) struct MoveState {
    paused: bool,
    balancing: bool,
    copied: u64,
    /// Of these, bytes of the group whose copy was begun last.
    of_group: u64,
    /// Bytes that were copied and do not count, as the copy of their group was given up.
    in_vain: u64,
    speed: Speed,
    /// Files of devices that were removed.
    removed: Vec<FileId>,
    trouble: Option<String>,
    /// True if moves have begun, and their end is not noted yet. With `cancelled` that end will be
    /// that they were cancelled.
    under_way: bool,
    cancelled: bool,
    /// The number of commands that have changed what is to be moved.
    commands: u64,
    ended: Option<MovesEnd>,
    away: AwaySince,
    /// Places that spares have taken.
    pub taken: TakenSpares,
    /// Chunks that are being filled, and how often that was begun.
    filling: (Vec<Chunk>, u64),
    /// Rung when chunks are to be moved, or not any more.
    changed: Event,
}

impl MoveState {
    /// The moves of a pool that is being opened.
    pub fn new(balancing: bool) -> MoveState {
        MoveState { balancing, ..MoveState::default() }
    }

    /// A command has changed what is to be moved: counting begins anew.
    pub fn begin(&mut self) {
        let removed = std::mem::take(&mut self.removed);
        let (paused, balancing) = (self.paused, self.balancing);
        let (away, filling) = (std::mem::take(&mut self.away), std::mem::take(&mut self.filling));
        let (taken, changed) = (std::mem::take(&mut self.taken), self.changed.clone());
        let (ended, commands) = (self.ended, self.commands + 1);
        *self = MoveState {
            paused,
            balancing,
            removed,
            away,
            taken,
            filling,
            changed,
            ended,
            commands,
            under_way: true,
            ..MoveState::default()
        };
        self.look_again();
    }

    /// A command has ended what was to be moved.
    pub fn cancel(&mut self) {
        let (copied, of_group) = (self.copied, self.of_group);
        self.begin();
        (self.copied, self.of_group, self.cancelled) = (copied, of_group, true);
    }

    /// The number of commands that have changed what is to be moved.
    pub fn commands(&self) -> u64 {
        self.commands
    }

    /// Nothing is left to be moved. What has ended now, if it is not known yet.
    pub fn end(&mut self, unix_time: u32) -> Option<MovesEnd> {
        if !std::mem::take(&mut self.under_way) {
            return None;
        }
        let outcome = match std::mem::take(&mut self.cancelled) {
            true => MovesOutcome::Cancelled,
            false => MovesOutcome::Done,
        };
        self.ended = Some(MovesEnd { outcome, ended_at: unix_time, copied_bytes: self.copied });
        self.ended
    }

    /// There may be something to move, or room for what could not be moved before.
    pub fn look_again(&self) {
        self.changed.notify();
    }

    /// Waits until chunks are to be moved, or not any more.
    pub fn changed(&self) -> impl Future<Output = ()> + use<> {
        self.changed.wait()
    }

    /// Chunks are spread evenly over the devices.
    pub fn is_balancing(&self) -> bool {
        self.balancing
    }

    /// Begins or ends balancing.
    pub fn set_balancing(&mut self, balancing: bool) {
        self.balancing = balancing;
    }

    pub fn set_paused(&mut self, paused: bool) {
        (self.paused, self.speed) = (paused, Speed::default());
        self.look_again();
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Devices that are out of use.
    pub fn away(&self) -> &AwaySince {
        &self.away
    }

    /// The same, to change them.
    pub fn away_mut(&mut self) -> &mut AwaySince {
        &mut self.away
    }

    /// A move begins to fill these chunks. Nothing else writes to them.
    pub fn begin_fill(&mut self, chunks: Vec<Chunk>) {
        self.filling = (chunks, self.filling.1 + 1);
    }

    /// The fill has ended, well or not.
    pub fn end_fill(&mut self) {
        self.filling.0.clear();
    }

    /// Chunks that are being filled, and how often that was begun.
    pub fn filling(&self) -> (&[Chunk], u64) {
        (&self.filling.0, self.filling.1)
    }

    /// The copy of a group begins.
    pub fn begin_group(&mut self) {
        self.of_group = 0;
    }

    /// Counts blocks of this group that were copied.
    pub fn copied(&mut self, now: Instant, blocks: u64) {
        let bytes = blocks * BLOCK_U64;
        (self.copied, self.of_group) = (self.copied + bytes, self.of_group + bytes);
        self.under_way = true;
        self.speed.count(now, self.written());
    }

    /// The copy of this group was given up, so that all of it is to be copied again.
    pub fn give_up_group(&mut self) {
        let bytes = std::mem::take(&mut self.of_group);
        (self.copied, self.in_vain) = (self.copied - bytes, self.in_vain + bytes);
    }

    /// Bytes that were copied, also in vain, since counting began.
    pub fn written(&self) -> u64 {
        self.copied + self.in_vain
    }

    /// A device was removed, and its file is not used any more.
    pub fn removed(&mut self, file: FileId) {
        self.removed.push(file);
        self.look_again();
    }

    /// Takes the files of removed devices. Each is returned once.
    pub fn take_removed(&mut self) -> Vec<FileId> {
        std::mem::take(&mut self.removed)
    }

    /// Moves have stopped for now, because of this error.
    pub fn stopped_by(&mut self, why: String) {
        self.trouble = Some(why);
    }

    /// Notes what moves wait for, if they wait for anything.
    pub fn waits_for(&mut self, what: Option<&str>) {
        self.trouble = what.map(|what| format!("waiting for {what}"));
    }

    pub fn status(&self, now: Instant, what: MoveBacklog) -> MovesStatus {
        let any = what.any || !what.leaving.is_empty() || !what.behind.is_empty() || self.balancing;
        let state = match (any, self.paused, &self.trouble) {
            (false, _, _) => MovesState::None,
            (true, true, _) => MovesState::Paused,
            (true, false, Some(_)) => MovesState::Waiting,
            (true, false, None) => MovesState::Running,
        };
        let rate = if state == MovesState::Running { self.speed.now(now) } else { 0 };
        MovesStatus {
            state,
            balancing: self.balancing,
            leaving: what.leaving,
            behind: what.behind,
            behind_groups: what.behind_groups,
            fewest_copies: what.fewest_copies,
            left_bytes: what.left_bytes,
            copied_bytes: self.copied,
            rate,
            left_s: (rate > 0).then(|| what.left_bytes.div_ceil(rate)),
            trouble: self.trouble.clone().filter(|_| state == MovesState::Waiting),
            ended: self.ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_follows_from_what_is_left_and_what_is_in_the_way() {
        let mut moves = MoveState::default();
        let now = Instant::default().after(base::Duration::from_secs(9));
        let state = |moves: &MoveState, left, leaving: &[&str]| {
            let leaving = leaving.iter().map(|s| String::from(*s)).collect();
            let what =
                MoveBacklog { any: left > 0, left_bytes: left, leaving, ..MoveBacklog::default() };
            moves.status(now, what).state
        };
        assert_eq!(state(&moves, 0, &[]), MovesState::None);
        assert_eq!(state(&moves, 1, &[]), MovesState::Running);
        assert_eq!(state(&moves, 0, &["a"]), MovesState::Running);
        moves.waits_for(Some("room"));
        assert_eq!(state(&moves, 1, &["a"]), MovesState::Waiting);
        let trouble =
            moves.status(now, MoveBacklog { any: true, ..MoveBacklog::default() }).trouble;
        assert_eq!(trouble.as_deref(), Some("waiting for room"));
        moves.set_paused(true);
        assert_eq!(state(&moves, 1, &[]), MovesState::Paused);
        moves.begin();
        assert_eq!(
            state(&moves, 1, &[]),
            MovesState::Paused,
            "a new command does not end the pause"
        );
        moves.set_paused(false);
        assert_eq!(state(&moves, 1, &[]), MovesState::Running);
        assert_eq!(state(&MoveState::new(true), 0, &[]), MovesState::Running);
    }
}
