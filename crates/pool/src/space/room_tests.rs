//! Room against a naive account: which blocks are taken, how many nodes are dirty, which changes
//! are under way, and what is reserved. What was let in finds room.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::task::{Context, Waker};

use base::{GroupId, Prng};
use format::page::{GroupKind, GroupRecord};
use format::superblock::DeviceState;

use super::*;
use crate::devices::tests::row;
use crate::space::{Alloc, Geometry, NodeRoom, Run, Space};

const GROUP: u32 = 256;
const GROUPS: u64 = 36;
/// Of these, groups that are metadata's.
const SHARE: u64 = 2;
/// What a change may add, and what is kept for those that give space back.
const CHANGE: u64 = 48;
const KEPT: u64 = 64;

const NOTHING: Demand = Demand { dirty_nodes: 0, blocks: 0 };

type Wait = Pin<Box<dyn Future<Output = ()>>>;

struct Account {
    rng: Prng,
    space: Space,
    devices: Devices,
    /// Blocks that are taken.
    data: Vec<Run>,
    nodes: Vec<Run>,
    dirty: u64,
    changes: Vec<NodeRoom>,
    reserved: Vec<Reservation>,
    /// Those that wait for the end of a change, and whether one has ended since.
    waiting: Vec<(Wait, bool)>,
    /// Changes that had to wait, of those that could wait for others; commits; blocks of passes.
    seen: (u64, u64, u64),
}

impl Account {
    fn new(seed: u64) -> Account {
        let geometry =
            Geometry { group_blocks: GROUP, group_capacity: GROUPS as u32, volume_pages: 1 };
        Account {
            rng: Prng::new(seed),
            space: Space::new(geometry, 1, vec![GroupRecord::free(); GROUPS as usize]),
            devices: Devices::new(vec![row(GROUPS, DeviceState::Online)]),
            data: Vec::new(),
            nodes: Vec::new(),
            dirty: 0,
            changes: Vec::new(),
            reserved: Vec::new(),
            waiting: Vec::new(),
            seen: (0, 0, 0),
        }
    }

    fn demand(&self) -> Demand {
        let blocks = self.data.iter().map(|run| u64::from(run.len)).sum();
        Demand { dirty_nodes: self.dirty, blocks }
    }

    /// Blocks that nodes can take: of groups with nodes, and of those that nothing has.
    fn room(&self) -> u64 {
        let mut of_nodes: BTreeMap<u64, u64> = BTreeMap::new();
        for run in &self.nodes {
            *of_nodes.entry(run.addr.0 / u64::from(GROUP)).or_default() += u64::from(run.len);
        }
        let used = (0..GROUPS as u32)
            .map(GroupId)
            .filter(|&id| !self.space.groups().chunks(id).is_empty());
        let (mut room, mut unused) = (0, GROUPS);
        for id in used {
            unused -= 1;
            if self.space.groups().kind(id) == GroupKind::Metadata {
                let taken = of_nodes.get(&u64::from(id.0)).copied().unwrap_or_default();
                room += u64::from(GROUP) - taken;
            }
        }
        room + unused * u64::from(GROUP)
    }

    /// Groups that metadata has, and those that it may have.
    fn groups_of_metadata(&self) -> u64 {
        let kind = |id| self.space.groups().kind(GroupId(id));
        (0..GROUPS as u32).filter(|&id| kind(id) != GroupKind::Data).count() as u64
    }

    /// A change asks for room. By the account it gets it, or waits for others, or there is none.
    fn ask(&mut self) {
        let purpose = if self.rng.one_in(3) { Purpose::Free } else { Purpose::Write };
        let kept = if purpose == Purpose::Write { KEPT } else { 0 };
        let (room, need) = (self.room(), self.dirty + CHANGE + kept);
        let under_way = CHANGE * self.changes.len() as u64;
        let may = room >= need + under_way;
        let later = under_way > 0 && room >= need;
        assert_eq!(self.space.room().admits(&self.devices, purpose, self.dirty), may);
        assert_eq!(self.space.room().admits_later(&self.devices, purpose, self.dirty), later);
        if may {
            self.changes.push(self.space.claims().reserve_nodes());
        } else if later {
            self.waiting.push((Box::pin(self.space.claims().changes_ended()), false));
            self.seen.0 += 1;
        }
    }

    /// A change is made, and wakes all that wait; or it is given up in the step in which it asked,
    /// and wakes none.
    fn end(&mut self) {
        let Some(room) = self.changes.pop() else { return };
        if self.rng.one_in(4) {
            room.forgo();
        } else {
            drop(room);
            self.dirty += self.rng.below(8);
            self.waiting.iter_mut().for_each(|(_, woken)| *woken = true);
        }
        let mut cx = Context::from_waker(Waker::noop());
        self.waiting.retain_mut(|(wait, woken)| {
            assert_eq!(wait.as_mut().poll(&mut cx).is_ready(), *woken);
            !*woken
        });
    }

    /// All dirty nodes find room, as each was let in; some replace others.
    fn commit(&mut self) {
        self.seen.1 += 1;
        for _ in 0..std::mem::take(&mut self.dirty) {
            let got = self.space.alloc(&mut self.devices, GroupKind::Metadata, 1, &NOTHING);
            let Alloc::Got(run) = got else { panic!("a node that was let in has no room") };
            self.nodes.push(run);
            if self.nodes.len() > 200 || self.rng.one_in(2) {
                let old = self.rng.below(self.nodes.len() as u64) as usize;
                self.space.release(self.nodes.swap_remove(old));
            }
        }
        self.space.dissolve_empty(&mut self.devices, GROUPS as usize);
    }

    /// A direct write takes blocks, as far as that leaves what is reserved.
    fn write(&mut self) {
        let want = 1 + self.rng.below(60);
        if !self.space.room().leaves_reserved(&self.devices, want, &self.demand()) {
            return;
        }
        let demand = self.demand();
        let got = self.space.alloc(&mut self.devices, GroupKind::Data, want as u32, &demand);
        if let Alloc::Got(run) = got {
            self.data.push(run);
        }
        assert!(
            self.space.room().leaves_reserved(&self.devices, 0, &self.demand()),
            "a write has taken what is reserved, or a group that its nodes need"
        );
    }

    fn free(&mut self) {
        if !self.data.is_empty() {
            let at = self.rng.below(self.data.len() as u64) as usize;
            self.space.release(self.data.swap_remove(at));
        }
    }

    fn reserve(&mut self) {
        let want = self.rng.below(80);
        let got = self.space.room().reserve(&self.devices, want, &self.demand());
        assert!(got.is_some() || want > 0, "nothing always fits");
        self.reserved.extend(got);
    }

    /// A write-back pass writes what a reservation is for.
    fn pass(&mut self) {
        let Some(mut room) = self.reserved.pop() else { return };
        while room.blocks() > 0 {
            let want = room.blocks() as u32;
            match self.space.alloc_for_pass(&mut self.devices, want, true, |_| true) {
                Alloc::Got(run) => {
                    room.spend(u64::from(run.len));
                    self.seen.2 += u64::from(run.len);
                    self.data.push(run);
                }
                Alloc::Joined(_) => {}
                _ => panic!("{} blocks that were reserved have no room", room.blocks()),
            }
        }
        (0..GROUPS as u32).for_each(|id| self.space.leave_pass(GroupId(id)));
        self.space.supply_mut().end_pass();
    }
}

#[test]
fn what_was_let_in_finds_room_and_what_waits_is_woken_by_the_end_of_a_change() {
    let (mut waited, mut refused) = (0, 0);
    for seed in 0..60 {
        let mut account = Account::new(seed);
        for _ in 0..2_000 {
            match account.rng.below(16) {
                0..=4 => account.ask(),
                5..=7 => account.end(),
                8 => account.commit(),
                9..=11 => account.write(),
                12 => account.free(),
                13 => account.reserve(),
                14 => account.pass(),
                _ => account.space.dissolve_empty(&mut account.devices, 2),
            }
            let reserved: u64 = account.reserved.iter().map(Reservation::blocks).sum();
            assert_eq!(account.space.claims().reserved(), reserved);
            assert!(account.groups_of_metadata() >= SHARE, "seed {seed}");
            let changes = account.changes.len() as u64;
            assert_eq!(account.space.claims().nodes(), CHANGE * changes);
            let demand = account.demand();
            refused +=
                u64::from(!account.space.room().leaves_reserved(&account.devices, 60, &demand));
        }
        waited += account.seen.0;
        assert!(account.seen.1 > 50 && account.seen.2 > 500, "seed {seed}: {:?}", account.seen);
    }
    assert!(waited > 100 && refused > 100, "{waited} waited, {refused} refused");
}

/// Metadata has no group yet, and many nodes are dirty.
#[test]
fn what_is_reserved_leaves_room_for_all_that_is_dirty() {
    for dirty in [0, 100, 300, 1_500, 6_000] {
        let mut account = Account::new(dirty);
        account.dirty = dirty;
        while let Some(room) = account.space.room().reserve(&account.devices, 64, &account.demand())
        {
            account.reserved.push(room);
        }
        assert!(account.reserved.len() > 20, "{} with {dirty} dirty nodes", account.reserved.len());
        while !account.reserved.is_empty() {
            account.pass();
        }
        let Account { mut space, mut devices, .. } = account;
        for n in 0..dirty {
            let got = space.alloc(&mut devices, GroupKind::Metadata, 1, &NOTHING);
            assert!(matches!(got, Alloc::Got(_)), "only {n} of {dirty} nodes have room");
        }
    }
}

#[test]
fn a_pass_forms_a_group_of_the_share_of_metadata_as_its_last_resort() {
    let Account { mut space, mut devices, .. } = Account::new(1);
    while let Alloc::Got(_) = space.alloc(&mut devices, GroupKind::Data, GROUP, &NOTHING) {}
    let formed = space.groups().sets().in_use();
    assert!(GROUPS - formed >= SHARE && GROUPS - formed <= SHARE + 1, "{formed}");
    let take = |space: &mut Space, devices: &mut Devices, keeps| match space.alloc_for_pass(
        devices,
        1,
        keeps,
        |_| true,
    ) {
        Alloc::Joined(_) => space.alloc_for_pass(devices, 1, keeps, |_| true),
        other => other,
    };
    // All that metadata does not lack is the pass's.
    while let Alloc::Got(_) = take(&mut space, &mut devices, true) {}
    assert_eq!(space.groups().formable(&devices), SHARE);
    assert!(matches!(take(&mut space, &mut devices, true), Alloc::Full));
    assert!(matches!(take(&mut space, &mut devices, false), Alloc::Got(_)));
    assert_eq!(space.groups().formable(&devices), SHARE - 1);
}
