use std::collections::BTreeSet;
use std::result::Result;

use base::{ErrorKind, Generation, PoolAddr};
use format::superblock::DeviceState;
use proptest::prelude::*;

use super::reservation::SetAsideBlocks;
use super::*;
use crate::devices::Devices;
use crate::devices::tests::row;

const GROUP: u32 = 256;
const NOTHING: Demand = Demand { dirty_nodes: 0, blocks: 0 };
const GEOMETRY: Geometry = Geometry { group_blocks: GROUP, group_capacity: 12, volume_pages: 1 };

/// Room without limit, to test what spends it.
pub(crate) fn set_aside() -> SetAsideBlocks {
    SetAsideBlocks::default()
}

/// The model: every block that may not be allocated, and why.
#[derive(Default)]
struct Model {
    /// Runs of the direct transaction and of metadata, with their kind, and those of the pass.
    held: Vec<(Run, GroupKind)>,
    of_pass: Vec<Run>,
    /// Blocks that are freed and may not be reused yet.
    waiting: Vec<Run>,
    /// Groups of which a chunk moves.
    closed: BTreeSet<GroupId>,
}

fn blocks(run: Run) -> impl Iterator<Item = u64> {
    run.addr.0..run.addr.0 + u64::from(run.len)
}

impl Model {
    fn busy(&self) -> BTreeSet<u64> {
        let held = self.held.iter().map(|h| h.0).chain(self.of_pass.iter().copied());
        held.chain(self.waiting.iter().copied()).flat_map(blocks).collect()
    }

    fn groups_of_pass(&self) -> BTreeSet<u64> {
        self.of_pass.iter().map(|r| r.addr.0 / u64::from(GROUP)).collect()
    }
}

/// The space agrees with the model, and its sums with its bitmaps.
fn compare(space: &Space, model: &Model, devices: &Devices) -> Result<(), TestCaseError> {
    let busy = model.busy();
    prop_assert_eq!(space.supply().busy(), busy.len() as u64);
    space.supply.check();
    for id in (0..12).map(GroupId) {
        prop_assert_eq!(space.supply.is_closed(id), model.closed.contains(&id));
        if space.groups.kind(id) == GroupKind::Free {
            prop_assert!(space.groups.chunks(id).is_empty() && !space.bitmaps.has(id));
            continue;
        }
        let maps = space.bitmaps.of(id).expect("no group was unloaded");
        for block in 0..GROUP {
            let addr = GEOMETRY.join(id, block).0;
            prop_assert_eq!(maps.busy.get(block as usize), busy.contains(&addr), "block {}", addr);
        }
        prop_assert_eq!(maps.busy.count() as u32, space.supply.busy_of(id));
    }
    let chunks: u64 = devices.iter().map(|d| d.record().chunks - d.chunks().free()).sum();
    prop_assert_eq!((chunks, 12 - chunks), (space.groups.sets().in_use(), space.groups.unused()));
    Ok(())
}

/// What was allocated is free, of the right kind, and the pass's own.
fn check_got(
    space: &Space,
    model: &Model,
    run: Run,
    kind: GroupKind,
    pass: bool,
) -> Result<(), TestCaseError> {
    let busy = model.busy();
    prop_assert!(
        run.len > 0 && blocks(run).all(|b| !busy.contains(&b)),
        "{run:?} was taken already"
    );
    let (id, block) = GEOMETRY.split(run.addr);
    prop_assert!(block + run.len <= GROUP, "{run:?} is in two groups");
    prop_assert_eq!(space.groups().kind_of(run), kind);
    prop_assert!(!model.closed.contains(&id), "{run:?} is in a closed group");
    let of_pass = model.groups_of_pass().contains(&u64::from(id.0));
    prop_assert!(pass || !of_pass, "{run:?} is in a group of the pass");
    Ok(())
}

proptest! {
    #[test]
    fn no_block_is_given_out_twice(
        steps in prop::collection::vec(
            (0u8..13, 1u32..120, any::<prop::sample::Index>(), any::<bool>()),
            1..160,
        ),
    ) {
        let mut devices = Devices::new(vec![row(12, DeviceState::Online)]);
        let mut space = Space::new(GEOMETRY, 1, vec![GroupRecord::free(); 12]);
        let mut model = Model::default();
        for (what, want, at, flag) in steps {
            match what {
                0..=2 => {
                    let kind = if flag { GroupKind::Data } else { GroupKind::Metadata };
                    match space.alloc(&mut devices, kind, want, &NOTHING) {
                        Alloc::Got(run) => {
                            model.waiting.clear();
                            model.waiting.extend(waiting(&space));
                            check_got(&space, &model, run, kind, false)?;
                            model.held.push((run, kind));
                        }
                        Alloc::Full if kind == GroupKind::Metadata => {
                            let left = (space.supply.free(kind), space.groups.formable(&devices));
                            prop_assert_eq!(left, (0, 0));
                        }
                        Alloc::Full => {}
                        Alloc::NeedMaps(_) | Alloc::Joined(_) => prop_assert!(false,
                            "all maps are loaded"),
                    }
                }
                3 | 4 => loop {
                    let quiet = |id: GroupId| flag || id.0 % 2 == 0;
                    match space.alloc_for_pass(&mut devices, want, true, quiet) {
                        Alloc::Joined(id) => {
                            let busy = space.supply.busy_of(id);
                            prop_assert!(flag || id.0 % 2 == 0 || busy == 0)
                        }
                        Alloc::Got(run) => {
                            model.waiting.clear();
                            model.waiting.extend(waiting(&space));
                            check_got(&space, &model, run, GroupKind::Data, true)?;
                            model.of_pass.push(run);
                            break;
                        }
                        Alloc::Full => break,
                        Alloc::NeedMaps(_) => prop_assert!(false, "all maps are loaded"),
                    }
                },
                // It was taken in vain.
                5 if !model.held.is_empty() => {
                    let (run, _) = model.held.swap_remove(at.index(model.held.len()));
                    space.release(run);
                }
                // A commit has freed it; with `flag` a read is about it.
                6 if !model.held.is_empty() => {
                    let (run, _) = model.held.swap_remove(at.index(model.held.len()));
                    let pin = flag.then(|| space.limbo().pin());
                    space.limbo_mut().free_after_reads(vec![vec![run]]);
                    PINS.with_borrow_mut(|pins| pins.extend(pin));
                }
                // Reads end, and what they kept becomes free.
                7 => {
                    PINS.with_borrow_mut(Vec::clear);
                    while space.drain(3) {}
                    prop_assert!(!space.limbo().has_any());
                }
                8 => space.dissolve_empty(&mut devices, 2),
                9 => {
                    let all = (0..12).map(GroupId);
                    let groups: BTreeSet<GroupId> =
                        all.filter(|&id| space.takers.is_of_pass(id)).collect();
                    groups.into_iter().for_each(|id| space.leave_pass(id));
                    space.supply_mut().end_pass();
                    model.held.extend(model.of_pass.drain(..).map(|run| (run, GroupKind::Data)));
                }
                10 => {
                    let id = GroupId(at.index(12) as u32);
                    let used = space.groups.kind(id) != GroupKind::Free;
                    let of_pass = space.takers.is_of_pass(id);
                    let (dirty_nodes, blocks) = (0, 0);
                    let demand = Demand { dirty_nodes, blocks };
                    let keeps = space.groups().chunks(id).to_vec();
                    let loses = Vec::new();
                    let want = ChunkChange { group: id, keeps, loses, gets: 1, of: None };
                    match space.close_group(&devices, &want, &demand) {
                        CloseOutcome::Needed => prop_assert!(used),
                        CloseOutcome::Changed => prop_assert!(!used),
                        closing => {
                            prop_assert!(used);
                            prop_assert_eq!(closing == CloseOutcome::OfPass, of_pass);
                            model.closed.insert(id);
                        }
                    }
                }
                11 => {
                    if let Some(id) = model.closed.pop_first() {
                        space.supply_mut().open_group(id);
                    }
                }
                // Something finds no room: moves that wait for the pass give theirs back.
                12 => {
                    let before = model.closed.len();
                    model.closed.retain(|&id| !space.takers().is_of_pass(id));
                    prop_assert_eq!(space.open_waiting(), model.closed.len() < before);
                }
                _ => {}
            }
            model.waiting.clear();
            model.waiting.extend(waiting(&space));
            compare(&space, &model, &devices)?;
        }
        PINS.with_borrow_mut(Vec::clear);
    }
}

thread_local! {
    /// The pins of reads under way.
    static PINS: std::cell::RefCell<Vec<Pin>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// What is in limbo: an allocation frees some of it in passing.
fn waiting(space: &Space) -> Vec<Run> {
    space.limbo.runs()
}

#[test]
fn freed_blocks_wait_for_reads_in_the_order_of_commits() {
    let mut devices = Devices::new(vec![row(12, DeviceState::Online)]);
    let mut space = Space::new(GEOMETRY, 1, vec![GroupRecord::free(); 12]);
    let mut take =
        |space: &mut Space| match space.alloc(&mut devices, GroupKind::Data, 10, &NOTHING) {
            Alloc::Got(run) => run,
            _ => unreachable!("there is room"),
        };
    let (a, b) = (take(&mut space), take(&mut space));
    let read = space.limbo().pin();
    space.limbo_mut().free_after_reads(vec![vec![a]]);
    space.limbo_mut().free_after_reads(vec![vec![b]]);
    assert!(!space.drain(100));
    assert_eq!(space.supply().busy(), 20, "the second waits for the first");
    drop(read);
    assert!(!space.drain(100));
    assert_eq!((space.supply().busy(), space.limbo().has_any()), (0, false));
    assert_eq!(a.addr, PoolAddr(0));
}

/// A free of a block that is not allocated is found before anything is changed.
#[test]
fn a_plan_that_does_not_fit_changes_nothing() {
    let mut devices = Devices::new(vec![row(12, DeviceState::Online)]);
    let mut space = Space::new(GEOMETRY, 1, vec![GroupRecord::free(); 12]);
    let Alloc::Got(run) = space.alloc(&mut devices, GroupKind::Data, 10, &NOTHING) else {
        unreachable!("there is room")
    };
    let mut planned = PlannedBitmaps::default();
    space.bitmaps().plan(&mut planned, run, true).expect("it is free by the durable bitmap");
    let free = Run { addr: run.addr.plus(10), len: 1 };
    assert_eq!(
        space.bitmaps().plan(&mut planned, free, false).expect_err("it is not allocated").kind,
        ErrorKind::Damaged
    );
    let (place, bits) = planned.pop().expect("one page");
    let before = space.bitmaps_mut().install(place, &bits);
    assert_eq!(space.note_page(place, &before, Generation(7)), PageChange::Changed);
    assert_eq!(space.groups().bitmap_generations(place.group)[0], Generation(7));
    let mut planned = PlannedBitmaps::default();
    space.bitmaps().plan(&mut planned, run, false).expect("it is allocated");
    let (place, bits) = planned.pop().expect("one page");
    let before = space.bitmaps_mut().install(place, &bits);
    assert_eq!(space.note_page(place, &before, Generation(9)), PageChange::Cleared);
    assert_eq!(space.groups().bitmap_generations(place.group)[0], Generation(0));
}
