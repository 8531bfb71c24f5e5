//! What is kept, and what is searched for in steps, against sweeps over all groups.

use std::collections::BTreeSet;

use base::{BLOCK_U64, Generation, Prng};
use format::page::GroupRecord;
use format::superblock::DeviceState;

use super::*;
use crate::devices::tests::row;
use crate::space::{Geometry, Space};

const GROUPS: u64 = 24;
const GEOMETRY: Geometry = Geometry { group_blocks: 256, group_capacity: 1 << 20, volume_pages: 1 };

/// The sweeps.
struct Naive<'a> {
    space: &'a Space,
    devices: &'a Devices,
}

impl Naive<'_> {
    fn used_groups(&self) -> impl Iterator<Item = (GroupId, &[Chunk])> {
        self.space.groups().used_among(GroupId(0), usize::MAX)
    }

    fn used(&self, id: GroupId) -> u64 {
        self.space.groups().used(id).into()
    }

    fn next_to_move(&self, from: GroupId) -> Option<ChunkChange> {
        let goal = self.space.placement().goal(self.devices);
        let mut groups = self.used_groups().filter(|&(id, _)| id >= from);
        groups.find_map(|(id, chunks)| ChunkChange::of(id, chunks, &goal))
    }

    fn next_to_balance(&self, from: GroupId) -> Option<ChunkChange> {
        let mut groups = self.used_groups().filter(|&(id, _)| id >= from);
        groups.find_map(|(id, chunks)| {
            let rests = !self.space.supply().is_left_alone(id);
            rests.then(|| to_balance(id, chunks, self.devices)).flatten()
        })
    }

    fn bytes_to_move(&self) -> u64 {
        let goal = self.space.placement().goal(self.devices);
        let of = |(id, chunks): (GroupId, &[Chunk])| {
            let want = ChunkChange::of(id, chunks, &goal)?;
            Some(self.used(id) * want.gets as u64)
        };
        self.used_groups().filter_map(of).sum::<u64>() * BLOCK_U64
    }

    fn goes_on_without(&self, lost: &BTreeSet<usize>) -> bool {
        let is_lost = |c: &Chunk| lost.contains(&usize::from(c.device));
        let stays = |c: &Chunk| !is_lost(c) && self.devices.is_whole(c);
        self.used_groups()
            .all(|(_, chunks)| chunks.iter().any(stays) || !chunks.iter().any(is_lost))
    }

    fn unpassed_bytes(&self, from: GroupId, block: u32, counts: impl Fn(usize) -> bool) -> u64 {
        let groups = self.used_groups().filter(|(id, _)| *id >= from);
        let each = groups.map(|(id, chunks)| {
            let (used, blocks) = (self.used(id), u64::from(GEOMETRY.group_blocks));
            let passed = if id == from { used * u64::from(block) / blocks } else { 0 };
            let copies = chunks.iter().filter(|c| counts(usize::from(c.device))).count() as u64;
            (used - passed) * copies
        });
        each.sum::<u64>() * BLOCK_U64
    }

    fn next_behind(&self, from: GroupId) -> Option<(GroupId, Vec<Chunk>)> {
        let of = |(id, chunks): (GroupId, &[Chunk])| {
            let is_it = |c: &&Chunk| c.behind && self.devices.is_live(c.device.into());
            let behind: Vec<Chunk> = chunks.iter().filter(is_it).copied().collect();
            (!behind.is_empty()).then_some((id, behind))
        };
        self.used_groups().filter(|&(id, _)| id >= from).find_map(of)
    }

    fn behind_on(&self, row: usize) -> u64 {
        let is_it = |c: &&Chunk| c.behind && usize::from(c.device) == row;
        self.used_groups().map(|(_, chunks)| chunks.iter().filter(is_it).count() as u64).sum()
    }

    fn lacked_bytes(&self, row: usize, since: Generation) -> u64 {
        let is_it = |c: &Chunk| c.behind && usize::from(c.device) == row;
        let behind = self.used_groups().filter(|(_, chunks)| chunks.iter().any(is_it));
        let since_then = |id| self.space.groups().bitmap_generations(id)[0] > since;
        let changed = behind.filter(|&(id, _)| since_then(id));
        changed.map(|(id, _)| self.used(id)).sum::<u64>() * BLOCK_U64
    }
}

/// The best of all pairs of a chunk and a device where it may go.
fn to_balance(group: GroupId, chunks: &[Chunk], devices: &Devices) -> Option<ChunkChange> {
    let gain = |from: &Chunk, to: usize| {
        let (used, all) = devices.fill(from.device.into())?;
        let (used_there, all_there) = devices.fill(to)?;
        if used_there == all_there || used == 0 || !devices.is_whole(from) {
            return None;
        }
        let [used, all, used_there, all_there] = [used, all, used_there, all_there].map(i128::from);
        let fall = (2 * used - 1) * all_there - (2 * used_there + 1) * all;
        (fall > 0).then(|| fall * 1000 / (all * all_there))
    };
    let is_free = |row: &usize| chunks.iter().all(|c| usize::from(c.device) != *row);
    let pairs = chunks.iter().flat_map(|from| {
        let to = (0..devices.count()).filter(is_free);
        to.filter_map(move |to| Some((gain(from, to)?, *from, to)))
    });
    let (_, from, to) = pairs.max_by_key(|&(gain, ..)| gain)?;
    let keeps = chunks.iter().filter(|c| **c != from).copied().collect();
    Some(ChunkChange { group, keeps, loses: vec![from], gets: 1, of: Some(to) })
}

/// Devices of all kinds, some of them as full as others.
fn some_devices(rng: &mut Prng) -> Devices {
    let even = rng.one_in(4);
    let mut device = |_| {
        let chunks = 10 * (1 + rng.below(3));
        let failed = rng.one_in(5);
        let mut d = row(chunks, if failed { DeviceState::Failed } else { DeviceState::Online });
        let taken = if even { chunks / 2 } else { rng.below(4) * chunks / 4 };
        (0..taken).for_each(|n| assert!(d.chunks_mut().take(n as u32)));
        if rng.one_in(5) {
            d.leave(None);
        }
        d
    };
    Devices::new((0..6).map(&mut device).collect())
}

fn change_one(rng: &mut Prng, space: &mut Space, usual: usize) {
    let id = GroupId(rng.below(GROUPS) as u32);
    let mut rows: Vec<u16> = (0..6).collect();
    let n = if rng.one_in(3) { rng.below(4) as usize } else { usual };
    while rows.len() > n {
        rows.remove(rng.below(rows.len() as u64) as usize);
    }
    // Chunks are in any order.
    if rng.one_in(2) {
        rows.reverse();
    }
    let (behind, used) = (rng.one_in(4), rng.below(257) as u32);
    let g = Generation(rng.below(6));
    if !space.groups().chunks(id).is_empty() {
        space.supply.open_group(id);
        space.supply.set_unreadable(id, false);
        space.supply.remove(id);
    }
    space.groups.change_record(id, |record| {
        record.kind = if n == 0 { GroupKind::Free } else { GroupKind::Data };
        record.chunks = rows.iter().map(|&row| Chunk::new(row, id.0)).collect();
        record.chunks.iter_mut().take(1).for_each(|c| c.behind = behind);
        (record.used, record.bitmap_generations[0]) = (used, g);
    });
    if n == 0 {
        return;
    }
    space.supply.enter(id, GroupKind::Data, used.min(256));
    if rng.one_in(6) {
        space.supply.close(id);
    }
    space.supply.set_unreadable(id, rng.one_in(6));
}

/// What a search finds in steps of so many groups.
fn search(from: GroupId, step: impl Fn(GroupId) -> Search) -> Option<ChunkChange> {
    let mut from = from;
    loop {
        match step(from) {
            Search::Found(want) => return Some(want),
            Search::GoesOn(next) => {
                assert!(next > from);
                from = next;
            }
            Search::Over => return None,
        }
    }
}

#[test]
fn all_answers_are_those_of_sweeps_over_all_groups() {
    let mut rng = Prng::new(11);
    let mut seen = [0; 5];
    for _ in 0..300 {
        let copies = 1 + rng.below(3) as u8;
        let records = vec![GroupRecord::free(); GROUPS as usize];
        let mut space = Space::new(GEOMETRY, copies, records);
        let devices = &some_devices(&mut rng);
        for _ in 0..20 {
            (0..4).for_each(|_| change_one(&mut rng, &mut space, copies.into()));
            let (from, looks) = (GroupId(rng.below(GROUPS + 2) as u32), 1 + rng.below(9) as usize);
            let naive = Naive { space: &space, devices };
            let want = naive.next_to_move(from);
            assert_eq!(
                search(from, |at| space.placement().look_for_move(at, devices, looks)),
                want
            );
            seen[0] += usize::from(want.is_none());
            assert_eq!(
                space.placement().any_to_move(devices),
                naive.next_to_move(GroupId(0)).is_some()
            );
            for id in (0..GROUPS as u32).map(GroupId) {
                let want = naive.next_to_move(id).filter(|want| want.group == id);
                assert_eq!(space.placement().to_move(id, devices), want);
            }
            let want = naive.next_to_balance(from);
            assert_eq!(
                search(from, |at| space.placement().look_for_balance(at, devices, looks)),
                want
            );
            seen[1] += usize::from(want.is_none());
            assert_eq!(space.placement().bytes_to_move(devices), naive.bytes_to_move());
            let lost = (0..6).filter(|_| rng.one_in(5)).collect();
            assert_eq!(
                space.groups().goes_on_without(devices, &lost),
                naive.goes_on_without(&lost)
            );
            seen[2] += usize::from(naive.goes_on_without(&lost) && !lost.is_empty());
            let counts = |row| !lost.contains(&row) && devices.is_live(row);
            let block = rng.below(u64::from(GEOMETRY.group_blocks)) as u32;
            let unpassed = naive.unpassed_bytes(from, block, counts);
            space.groups_mut().pass_to(from);
            assert_eq!(space.unpassed_bytes(from, block, counts), unpassed);
            let naive = Naive { space: &space, devices };
            let behind = naive.next_behind(from);
            assert_eq!(space.groups().next_behind(from, devices), behind);
            seen[3] += usize::from(behind.is_some());
            let row = rng.below(6) as usize;
            assert_eq!(space.groups().sets().behind_on(row), naive.behind_on(row));
            let since = Generation(if rng.one_in(6) { rng.below(6) } else { 3 });
            let lacked = naive.lacked_bytes(row, since);
            assert_eq!(space.groups_mut().lacked_bytes(row, since), lacked);
            seen[4] += usize::from(lacked > 0);
        }
    }
    assert!(seen.iter().all(|&n| n > 100), "{seen:?}");
}

/// Chunks are marked in steps, and all are.
#[test]
fn each_chunk_is_marked_whose_group_has_changed_since() {
    let record = |n: u32| {
        let chunks = vec![Chunk::new(0, n), Chunk::new(1, n)];
        let mut record = GroupRecord { kind: GroupKind::Data, chunks, ..GroupRecord::free() };
        record.bitmap_generations[0] = Generation((n % 3).into());
        record
    };
    let mut space = Space::new(GEOMETRY, 2, (0..2000).map(record).collect());
    let (mut next, mut steps) = (Some(GroupId(0)), 0);
    while let Some(from) = next {
        next = space.groups_mut().mark_behind(1, Generation(1), from);
        steps += 1;
    }
    assert!(steps > 1);
    let changed = space.groups_mut().take_changed();
    let marked = |id: &GroupId| {
        space.groups().chunks(*id)[1].behind && !space.groups().chunks(*id)[0].behind
    };
    let all: BTreeSet<GroupId> = (0..2000).map(GroupId).collect();
    assert!(all.iter().all(|id| marked(id) == (id.0 % 3 == 2)));
    assert_eq!(space.groups().sets().behind_on(1), 666);
    assert_eq!(changed, all.into_iter().filter(marked).collect());
}

/// In a step at most so many groups are looked at, however many there are.
#[test]
fn no_step_of_a_search_is_long_however_many_groups_there_are() {
    let record = |n: u32| GroupRecord {
        kind: GroupKind::Data,
        chunks: vec![Chunk::new(u16::from(n >= 50_000), n)],
        ..GroupRecord::free()
    };
    let mut space = Space::new(GEOMETRY, 1, (0..100_000).map(record).collect());
    let mut devices: Vec<_> = (0..3).map(|_| row(100_000, DeviceState::Online)).collect();
    devices[1].leave(None);
    let devices = Devices::new(devices);
    let steps = |step: &dyn Fn(GroupId) -> Search| {
        let (mut from, mut steps) = (GroupId(0), 0);
        loop {
            match step(from) {
                Search::GoesOn(next) => {
                    assert!(next.0 - from.0 <= LOOKS as u32);
                    (from, steps) = (next, steps + 1);
                }
                Search::Found(want) => break (Some(want.group), steps),
                Search::Over => break (None, steps),
            }
        }
    };
    let to_move = |from| space.placement().next_to_move(from, &devices);
    assert_eq!(steps(&to_move), (Some(GroupId(50_000)), 50_000 / LOOKS));
    // Where everything is as it should be, one step tells that.
    for id in (50_000..100_000).map(GroupId) {
        space.groups_mut().change_record(id, |record| record.chunks = vec![Chunk::new(0, id.0)]);
    }
    assert_eq!(steps(&|from| space.placement().next_to_move(from, &devices)), (None, 0));
    assert_eq!(steps(&|from| space.placement().next_to_balance(from, &devices)), (None, 0));
}
