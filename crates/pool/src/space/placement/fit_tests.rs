use std::collections::BTreeSet;

use base::Prng;
use format::page::{Chunk, GroupKind, GroupRecord};
use format::superblock::DeviceState;

use super::super::flow::tests::{Groups as Wants, case, left, most};
use super::*;
use crate::devices::tests::row;
use crate::space::{Geometry, Space};

/// Groups of two or three copies on these devices.
fn space(copies: u8, groups: impl Iterator<Item = Vec<u16>>) -> Space {
    let record = |rows: Vec<u16>| GroupRecord {
        kind: GroupKind::Data,
        chunks: rows.into_iter().map(|row| Chunk::new(row, 0)).collect(),
        ..GroupRecord::free()
    };
    let geometry = Geometry { group_blocks: 256, group_capacity: 1 << 20, volume_pages: 1 };
    Space::new(geometry, copies, groups.map(record).collect())
}

fn devices(free: &[u64]) -> Devices {
    Devices::new(free.iter().map(|&free| row(free, DeviceState::Online)).collect())
}

/// The answer to a question.
fn fit(space: &Space, asked: Vec<Terms>) -> Fit {
    let mut fit = Fit::default();
    while !fit.go_on(space.groups(), asked.clone()) {}
    fit
}

/// Two copies. The first device leaves; it has 50 groups together with the second one. There
/// are 60 free chunks, and 10 of them are of use.
#[test]
fn free_chunks_beside_the_other_copy_are_of_no_use() {
    let shortage = |copies: u8, groups: &[Vec<u16>], free: &[u64]| {
        let space = space(copies, groups.iter().cloned());
        let asked = space.placement().terms(&devices(free)).before_and_after(|now| now.without(0));
        fit(&space, asked).new_shortage()
    };
    let on_both = vec![vec![0, 1]; 50];
    let found = shortage(2, &on_both, &[0, 50, 10]).expect("a shortage");
    assert_eq!(found, Shortage { chunks: 40, rows: vec![2], devices: 1 });
    assert_eq!(shortage(2, &on_both, &[0, 0, 50]), None);
    assert_eq!(shortage(2, &on_both, &[0, 0, 10, 40]), None);
    let lone = space(1, std::iter::once(vec![0]));
    let asked = lone.placement().terms(&devices(&[9])).before_and_after(|now| now.with_copies(3));
    let found = fit(&lone, asked).new_shortage().expect("a shortage");
    assert_eq!(found, Shortage { chunks: 2, rows: vec![], devices: 2 });
}

/// A device that is added has room for everything: for one chunk of each group.
#[test]
fn so_many_devices_have_to_be_added() {
    let (mut rng, mut seen) = (Prng::new(5), BTreeSet::new());
    for _ in 0..2000 {
        let (groups, free) = case(&mut rng);
        let rows = |has: Rows| rows_of(has).map(|row| row as u16).collect::<Vec<u16>>();
        let groups: Vec<Vec<u16>> = groups.iter().map(|g| rows(g.0)).collect();
        let space = space(1, groups.iter().filter(|g| (1..4).contains(&g.len())).cloned());
        let devices = devices(&free);
        let leaves = rng.below(free.len() as u64) as usize;
        let after = |now: Terms| match leaves % 2 {
            0 => now.without(leaves),
            _ => now.with_copies(3),
        };
        let terms = after(space.placement().terms(&devices));
        let wants: Wants = space
            .groups()
            .used_among(GroupId(0), groups.len())
            .filter_map(|(id, chunks)| {
                let want = ChunkChange::of(id, chunks, &terms.goal)?;
                Some((space.groups().set_of(id).rows(), want.gets))
            })
            .collect();
        let (all, mut free) = (wants.iter().map(|w| w.1 as u64).sum::<u64>(), terms.free);
        let chunks = all - most(&wants, &mut free);
        let found =
            fit(&space, space.placement().terms(&devices).before_and_after(after)).new_shortage();
        assert_eq!(found.as_ref().map_or(0, |s| s.chunks), chunks, "{wants:?} {free:?}");
        let Some(found) = found else { continue };
        for (added, suffices) in [(found.devices, true), (found.devices - 1, false)] {
            let mut more = free.clone();
            more.extend(std::iter::repeat_n(all, added));
            assert_eq!(left(&wants, &more) == 0, suffices, "{wants:?} {free:?}");
        }
        seen.insert(found.devices);
    }
    assert_eq!(seen, BTreeSet::from([1, 2]));
}

/// As many groups as a large pool has, on all sets of three devices of some.
fn many(groups: usize, devices: u64) -> Space {
    let mut rng = Prng::new(3);
    let mut group = || {
        let mut rows = BTreeSet::new();
        while rows.len() < 3 {
            rows.insert(rng.below(devices) as u16);
        }
        rows.into_iter().collect()
    };
    space(3, (0..groups).map(|_| group()).collect::<Vec<_>>().into_iter())
}

/// What is done in each slice.
fn slices(space: &Space, asked: Vec<Terms>) -> (Vec<u64>, Fit) {
    let mut fit = Fit::default();
    fit.begin(space.groups(), asked, SLICE);
    let mut all = Vec::new();
    while !fit.over {
        all.push(fit.work(space.groups().sets()));
    }
    (all, fit)
}

/// It holds the engine.
#[test]
fn no_slice_is_long_however_many_groups_and_sets_there_are() {
    let space = many(100_000, 64);
    assert!(space.groups().sets().after(None).count() > 30_000);
    // A kind is looked at as a whole: once for all terms, and all devices for each hop.
    let most = SLICE + 64 * 64 * 4;
    // There is just enough room, or not: some devices are full, and others are not.
    for free in [400, 50, 90] {
        let full = |row: u64| if row.is_multiple_of(4) { 0 } else { free };
        let devices = devices(&(0..64).map(full).collect::<Vec<_>>());
        let asked = space.placement().terms(&devices).before_and_after(|now| now.without(63));
        let (work, fit) = slices(&space, asked);
        let room: u64 = fit.lanes[1].terms.free.iter().sum();
        let need = space.groups().sets().chunks_on(63);
        assert_eq!(fit.new_shortage().map_or(0, |s| s.chunks), need.saturating_sub(room));
        assert!(work.len() > 10 && work.iter().all(|&did| did < most), "{work:?}");
    }
}

/// A slice looks at sets, and at no group.
#[test]
fn more_groups_of_the_same_sets_are_no_more_work() {
    let work = |groups: usize| {
        let (space, devices) = (many(groups, 8), devices(&[1 << 20; 8]));
        let asked = space.placement().terms(&devices).before_and_after(|now| now.without(7));
        slices(&space, asked).0.iter().sum::<u64>()
    };
    assert_eq!(work(2_000), work(20_000));
}

/// What is asked, or the space, changes between two slices.
#[test]
fn what_changes_meanwhile_is_in_the_answer() {
    let mut space = many(50_000, 64);
    let asked = |space: &Space, free: u64| {
        let devices = devices(&[free; 64]);
        space.placement().terms(&devices).before_and_after(|now| now.without(63))
    };
    let mut fit = Fit::default();
    assert!(!fit.go_on(space.groups(), asked(&space, 1)));
    assert!(!fit.go_on(space.groups(), asked(&space, 2)));
    let need = space.groups().sets().chunks_on(63);
    space
        .groups_mut()
        .change_record(GroupId(0), |record| record.chunks = [1, 2, 63].map(chunk).into());
    space
        .groups_mut()
        .change_record(GroupId(1), |record| record.chunks = [3, 4, 63].map(chunk).into());
    space
        .groups_mut()
        .change_record(GroupId(2), |record| record.chunks = [5, 6, 63].map(chunk).into());
    let now = space.groups().sets().chunks_on(63);
    assert!(now > need);
    while !fit.go_on(space.groups(), asked(&space, 2)) {}
    assert_eq!(fit.new_shortage().map(|s| s.chunks), Some(now - 63 * 2));
}

/// Of the sets that there usually are at most.
#[test]
fn an_answer_is_found_even_if_something_changes_all_the_time() {
    let space = many(20_000, 20);
    assert!(space.groups().sets().after(None).count() > 1000);
    let (mut fit, mut slices) = (Fit::default(), 0);
    let asked = |free| {
        let devices = devices(&[free; 20]);
        space.placement().terms(&devices).before_and_after(|now| now.without(7))
    };
    while !fit.go_on(space.groups(), asked(slices)) {
        slices += 1;
        assert!(fit.slice <= LONG_SLICE && slices < 4, "{slices}");
    }
    assert!(slices > 0);
}

fn chunk(row: u16) -> Chunk {
    Chunk::new(row, 0)
}
