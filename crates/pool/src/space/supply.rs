//! The supply of free blocks: which groups have some, and which of them are left alone.

use std::collections::{BTreeMap, BTreeSet};

use base::{ErrorKind, GroupId, Instant, StorageError, counted};
use format::page::GroupKind;
use rt::sync::Event;

/// A place where the next allocations look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Cursor {
    Data,
    Metadata,
    /// Of the write-back pass.
    Pass,
}

impl Cursor {
    pub fn of(kind: GroupKind) -> Cursor {
        match kind {
            GroupKind::Data => Cursor::Data,
            GroupKind::Metadata => Cursor::Metadata,
            GroupKind::Free => unreachable!("nothing is allocated for a free group"),
        }
    }
}

/// A group in use, as far as its blocks are counted.
#[derive(Clone, Copy)]
struct GroupInUse {
    kind: GroupKind,
    busy: u32,
}

/// The number of busy blocks of each group in use, and the groups from which blocks are taken.
///
/// - A group in use is *left alone* if it is closed for a move, or if its bitmaps or checksums
///   cannot be read.
/// - The index and the numbers of free blocks have all groups in use but those.
/// - No cursor is in a group that is left alone, or in one that is not in use.
///
/// A flow that takes blocks of a group, or gives them back, says so here in the same step.
pub(crate) struct Supply {
    group_blocks: u32,
    /// By number; `None`: not in use.
    groups: Vec<Option<GroupInUse>>,
    /// Blocks that may not be allocated, of all groups.
    busy: u64,
    /// Groups with free blocks, by kind, in the order of the logarithm of their number.
    by_free: [BTreeSet<(u32, GroupId)>; 2],
    /// Free blocks, by kind.
    free: [u64; 2],
    /// The places where the next allocations look.
    cursors: [Option<(GroupId, u32)>; 3],
    /// Groups that are closed for a move: nothing is allocated from them, so their blocks only
    /// become fewer.
    closed: BTreeSet<GroupId>,
    /// Groups whose bitmaps could not be read.
    unreadable: BTreeSet<GroupId>,
    /// Groups of whose checksums a node could not be read when blocks were to be entered, and until
    /// when they are left alone.
    lost_sums: BTreeMap<GroupId, Instant>,
    /// Groups that may have become empty.
    maybe_empty: BTreeSet<GroupId>,
    /// Tasks that wait for a group to join, or for changes to end: direct writes take no blocks
    /// meanwhile.
    direct_held: u32,
    /// Notified when a closed group is opened, and when direct writes may take blocks again.
    opened: Event,
}

fn kind_index(kind: GroupKind) -> usize {
    match kind {
        GroupKind::Data => 0,
        GroupKind::Metadata => 1,
        GroupKind::Free => unreachable!("a free group has no place among the used ones"),
    }
}

/// The logarithm of a number of free blocks.
fn class_of(free: u32) -> u32 {
    u32::BITS - free.leading_zeros()
}

impl Supply {
    /// A supply of `groups` groups of `group_blocks` blocks each, none of them in use.
    pub(super) fn new(group_blocks: u32, groups: usize) -> Supply {
        Supply {
            group_blocks,
            groups: vec![None; groups],
            busy: 0,
            by_free: [BTreeSet::new(), BTreeSet::new()],
            free: [0; 2],
            cursors: [None; 3],
            closed: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            lost_sums: BTreeMap::new(),
            maybe_empty: BTreeSet::new(),
            direct_held: 0,
            opened: Event::new(),
        }
    }

    /// A group is in use from now on.
    pub(super) fn enter(&mut self, id: GroupId, kind: GroupKind, busy: u32) {
        let group = &mut self.groups[id.0 as usize];
        assert!(group.is_none(), "{id:?} is in use");
        *group = Some(GroupInUse { kind, busy });
        self.busy += u64::from(busy);
        if !self.is_left_alone(id) {
            self.index_group(id);
        }
    }

    /// A group that is not left alone is not in use any more.
    pub(super) fn remove(&mut self, id: GroupId) {
        self.unindex_group(id);
        self.busy -= u64::from(self.busy_of(id));
        self.groups[id.0 as usize] = None;
    }

    fn in_use(&self, id: GroupId) -> GroupInUse {
        match self.groups[id.0 as usize] {
            Some(group) => group,
            None => unreachable!("{id:?} is not in use"),
        }
    }

    /// Blocks of all groups that are in use or not yet free for others.
    pub fn busy(&self) -> u64 {
        self.busy
    }

    /// Blocks of a group that may not be allocated.
    pub(super) fn busy_of(&self, id: GroupId) -> u32 {
        self.groups[id.0 as usize].map_or(0, |group| group.busy)
    }

    /// The other blocks of a group, whether it is left alone or not.
    pub(super) fn free_of(&self, id: GroupId) -> u32 {
        self.group_blocks - self.busy_of(id)
    }

    /// Free blocks of a kind, of the groups from which blocks are taken.
    pub(super) fn free(&self, kind: GroupKind) -> u64 {
        self.free[kind_index(kind)]
    }

    /// The group of a kind with the most free blocks, roughly, of those that `usable` lets pass.
    pub(super) fn emptiest(
        &self,
        kind: GroupKind,
        usable: impl Fn(GroupId) -> bool,
    ) -> Option<GroupId> {
        self.by_free[kind_index(kind)].iter().rev().map(|&(_, id)| id).find(|&id| usable(id))
    }

    /// Notes that `blocks` blocks of a group were allocated.
    pub(super) fn take(&mut self, id: GroupId, blocks: u32) {
        self.set_busy(id, self.in_use(id).busy + blocks);
    }

    /// Notes that `blocks` blocks of a group are free again.
    pub(super) fn give_back(&mut self, id: GroupId, blocks: u32) {
        let busy = self.in_use(id).busy - blocks;
        if busy == 0 {
            self.maybe_empty.insert(id);
        }
        self.set_busy(id, busy);
    }

    /// Changes a used group's number of busy blocks and keeps the index of free space exact.
    fn set_busy(&mut self, id: GroupId, busy: u32) {
        let group = self.in_use(id);
        let k = kind_index(group.kind);
        let (old, new) = (self.group_blocks - group.busy, self.group_blocks - busy);
        self.busy = self.busy + u64::from(busy) - u64::from(group.busy);
        self.groups[id.0 as usize] = Some(GroupInUse { busy, ..group });
        if self.is_left_alone(id) {
            return;
        }
        self.free[k] = self.free[k] + u64::from(new) - u64::from(old);
        if class_of(old) != class_of(new) {
            self.by_free[k].remove(&(class_of(old), id));
            if new > 0 {
                self.by_free[k].insert((class_of(new), id));
            }
        }
    }

    /// Enters a group into the index of free space.
    fn index_group(&mut self, id: GroupId) {
        let k = kind_index(self.in_use(id).kind);
        let free = self.free_of(id);
        self.free[k] += u64::from(free);
        if free > 0 {
            self.by_free[k].insert((class_of(free), id));
        }
    }

    /// Takes a group out of the index of free space.
    fn unindex_group(&mut self, id: GroupId) {
        let k = kind_index(self.in_use(id).kind);
        let free = self.free_of(id);
        self.free[k] -= u64::from(free);
        self.by_free[k].remove(&(class_of(free), id));
        self.leave(id);
    }

    /// The place where the next allocation looks: a group, and a block of it.
    pub(super) fn cursor(&self, of: Cursor) -> Option<(GroupId, u32)> {
        self.cursors[of as usize]
    }

    /// Moves a cursor, into a group that is not left alone.
    pub(super) fn set_cursor(&mut self, of: Cursor, at: Option<(GroupId, u32)>) {
        self.cursors[of as usize] = at;
    }

    /// True if a cursor is in this group.
    pub(super) fn has_cursor(&self, id: GroupId) -> bool {
        self.cursors.iter().flatten().any(|c| c.0 == id)
    }

    /// Moves all cursors out of this group.
    pub(super) fn leave(&mut self, id: GroupId) {
        for cursor in &mut self.cursors {
            *cursor = cursor.filter(|c| c.0 != id);
        }
    }

    /// The write-back pass has ended.
    pub fn end_pass(&mut self) {
        self.set_cursor(Cursor::Pass, None);
    }

    /// A part of the group that the write-back pass takes blocks from next, in which about `blocks`
    /// free ones should be; `None`: it has not begun with any.
    pub fn next_of_pass(&self, blocks: u64) -> Option<(GroupId, (u32, u32))> {
        let (id, at) = self.cursor(Cursor::Pass)?;
        let all = u64::from(self.group_blocks);
        let span = blocks.saturating_mul(all) / u64::from(self.free_of(id)).max(1);
        // Free blocks are not spread evenly.
        let end = (u64::from(at) + span + span / 4).min(all);
        Some((id, (at, end as u32)))
    }

    /// True if nothing is allocated from a group for now.
    pub(super) fn is_left_alone(&self, id: GroupId) -> bool {
        self.is_closed(id) || self.is_unreadable(id)
    }

    /// True if a group is closed for a move.
    pub(super) fn is_closed(&self, id: GroupId) -> bool {
        self.closed.contains(&id)
    }

    /// True if a group's bitmaps or checksums cannot be read.
    pub(super) fn is_unreadable(&self, id: GroupId) -> bool {
        self.unreadable.contains(&id) || self.lost_sums.contains_key(&id)
    }

    /// Groups that are closed.
    pub(super) fn closed(&self) -> impl Iterator<Item = GroupId> {
        self.closed.iter().copied()
    }

    /// True if a group is closed: when it is open again there may be room.
    pub fn any_closed(&self) -> bool {
        !self.closed.is_empty()
    }

    /// Nothing is allocated from a group until it is [opened](Supply::open_group).
    pub(super) fn close(&mut self, id: GroupId) {
        self.change_use(id, |supply| _ = supply.closed.insert(id));
    }

    /// Blocks are allocated from a group again.
    pub fn open_group(&mut self, id: GroupId) {
        if !self.is_closed(id) {
            return;
        }
        self.change_use(id, |supply| _ = supply.closed.remove(&id));
        self.opened.notify();
        self.maybe_empty.insert(id);
    }

    /// Waits until a group that is closed is open again, or direct writes may take blocks again.
    pub fn opened(&self) -> impl Future<Output = ()> + use<> {
        self.opened.wait()
    }

    /// Direct writes take no blocks until [`Supply::let_direct_go`] was called as often: a task
    /// waits for what each of them would change again.
    pub fn hold_direct(&mut self) {
        self.direct_held += 1;
    }

    /// The end of a [`Supply::hold_direct`].
    pub fn let_direct_go(&mut self) {
        self.direct_held -= 1;
        if self.direct_held == 0 {
            self.opened.notify();
        }
    }

    /// True while direct writes are to take no blocks, until [`Supply::opened`].
    pub fn holds_direct(&self) -> bool {
        self.direct_held > 0
    }

    /// Nothing is allocated from a group whose bitmaps cannot be read, until a later try reads
    /// them.
    pub(super) fn set_unreadable(&mut self, id: GroupId, unreadable: bool) {
        self.change_use(id, |supply| {
            match unreadable {
                true => supply.unreadable.insert(id),
                false => supply.unreadable.remove(&id),
            };
        });
    }

    /// A node of a group's checksums cannot be read. Nothing is allocated from it `until` then.
    /// Returns true if that is new.
    pub fn lose_sums(&mut self, id: GroupId, until: Instant) -> bool {
        let new = !self.lost_sums.contains_key(&id);
        self.change_use(id, |supply| _ = supply.lost_sums.entry(id).or_insert(until));
        new
    }

    /// Takes groups into use again that were to be left alone until now, or until before. Returns
    /// true if there was one.
    pub fn use_again(&mut self, now: Instant) -> bool {
        let old = |(&id, &until): (&GroupId, &Instant)| (until <= now).then_some(id);
        let ids: Vec<GroupId> = self.lost_sums.iter().filter_map(old).collect();
        for &id in &ids {
            self.change_use(id, |supply| _ = supply.lost_sums.remove(&id));
        }
        !ids.is_empty()
    }

    /// Changes whether blocks are allocated from a group.
    fn change_use(&mut self, id: GroupId, change: impl FnOnce(&mut Supply)) {
        let before = self.is_left_alone(id);
        change(self);
        match (before, self.is_left_alone(id)) {
            (false, true) => self.unindex_group(id),
            (true, false) => self.index_group(id),
            _ => {}
        }
    }

    /// The error where nothing could be allocated: no group has room, or only groups whose bitmaps
    /// or checksums cannot be read may have some. `what` begins its text.
    pub fn no_room(&self, what: &str) -> StorageError {
        let lost = self.lost_sums.keys().filter(|id| !self.unreadable.contains(id));
        match self.unreadable.len() + lost.count() {
            0 => StorageError::new(
                ErrorKind::NoSpace,
                format!("{what}; discard something or add space"),
            ),
            n => {
                let text = format!(
                    "{what}, and {} cannot be used; see to the pool's devices, then restart \
                     forebay",
                    counted(
                        n as u64,
                        "block group with an unreadable bitmap or unreadable checksums",
                        "block groups with unreadable bitmaps or checksums"
                    )
                );
                StorageError::new(ErrorKind::Io, text)
            }
        }
    }

    /// A group may have become empty.
    pub(super) fn note_maybe_empty(&mut self, id: GroupId) {
        self.maybe_empty.insert(id);
    }

    /// Takes out a group that may have become empty.
    pub(super) fn pop_maybe_empty(&mut self) -> Option<GroupId> {
        self.maybe_empty.pop_first()
    }

    /// True if a group may have become empty.
    pub fn may_dissolve(&self) -> bool {
        !self.maybe_empty.is_empty()
    }
}

#[cfg(test)]
impl Supply {
    /// The number of groups that are left alone because they cannot be read.
    pub fn unreadable(&self) -> usize {
        self.unreadable.len() + self.lost_sums.len()
    }

    /// Sums up the free blocks anew, over all groups that are not left alone.
    pub fn check(&self) {
        let (mut busy, mut free, mut index) = (0, [0; 2], [BTreeSet::new(), BTreeSet::new()]);
        for (id, group) in (0..).map(GroupId).zip(&self.groups) {
            let Some(group) = group else {
                assert!(!self.is_left_alone(id), "{id:?} is not in use");
                assert!(!self.has_cursor(id), "{id:?} is not in use");
                continue;
            };
            busy += u64::from(group.busy);
            if self.is_left_alone(id) {
                assert!(!self.has_cursor(id), "{id:?} is left alone");
                continue;
            }
            let (k, left) = (kind_index(group.kind), self.group_blocks - group.busy);
            free[k] += u64::from(left);
            if left > 0 {
                index[k].insert((class_of(left), id));
            }
        }
        assert_eq!((self.busy, self.free, &self.by_free), (busy, free, &index));
    }
}
