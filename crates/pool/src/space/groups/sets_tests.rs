use base::Prng;
use format::page::{BITS_PER_PAGE, GroupKind};

use super::*;

/// A group has two bitmap pages, and the second one is smaller.
const GEOMETRY: Geometry =
    Geometry { group_blocks: BITS_PER_PAGE + 100, group_capacity: 12, volume_pages: 1 };

/// Records change at random. The model counts all of them anew.
#[test]
fn the_numbers_agree_with_the_groups() {
    let (mut rng, mut sets) = (Prng::new(4), DeviceSets::new(GEOMETRY));
    let mut all: Vec<CountedGroup> =
        (0..12).map(|id| sets.enter(GroupId(id), GroupRecord::free())).collect();
    let (mut seen, mut lacked, mut was_passed) = (sets.changes(), 0, 0);
    for _ in 0..5000 {
        let before: Vec<(DeviceSet, u64)> = sets.after(None).map(|(s, n)| (s.clone(), n)).collect();
        change_one(&mut rng, &mut sets, &mut all);
        let now: Vec<(DeviceSet, u64)> = sets.after(None).map(|(s, n)| (s.clone(), n)).collect();
        compare(&sets, &all);
        assert!(now == before || sets.changes() != seen);
        seen = sets.changes();
        if let Some((set, _)) = now.get(now.len() / 2) {
            assert_eq!(sets.after(Some(set)).count(), now.len() - now.len() / 2 - 1);
        }
        // It is asked for the same generation again and again, and then for another one.
        let (row, g) = (rng.below(5) as usize, rng.below(8));
        let since = if rng.one_in(8) { Generation(g) } else { sets.rows[row].since };
        let found = sets.lacked(row, since, |id| &all[id.0 as usize]);
        assert_eq!(found, naively_lacked(&all, row, since));
        lacked += found;
        if rng.one_in(4) {
            let to = GroupId(rng.below(13) as u32);
            sets.pass_to(to, |id| &all[id.0 as usize]);
        }
        let passed = &all[..sets.passed_to.0 as usize];
        let there = |g: &&CountedGroup| g.chunks.iter().any(|c| usize::from(c.device) == row);
        let used = passed.iter().filter(there).map(|g| u64::from(g.used)).sum::<u64>();
        assert_eq!(sets.passed_on(row), used);
        was_passed += used;
    }
    assert!(lacked > 0 && was_passed > 0);
}

fn change_one(rng: &mut Prng, sets: &mut DeviceSets, all: &mut [CountedGroup]) {
    let (at, n) = (rng.below(12) as usize, rng.below(4) as usize);
    let mut rows: Vec<u16> = (0..5).collect();
    while rows.len() > n {
        rows.remove(rng.below(rows.len() as u64) as usize);
    }
    let behind = rng.below(4) == 0;
    sets.change(&mut all[at], |record| match rng.below(5) {
        0 => record.used = rng.below(GEOMETRY.group_blocks.into()) as u32,
        1 => record.chunks.iter_mut().for_each(|c| c.behind = behind),
        2 => record.chunks.iter_mut().take(1).for_each(|c| c.behind = behind),
        3 => record.bitmap_generations[n % 2] = Generation(rng.below(8)),
        _ => {
            let kinds = [GroupKind::Data, GroupKind::Metadata];
            record.kind = if n == 0 { GroupKind::Free } else { kinds[rng.below(2) as usize] };
            record.chunks = rows.iter().map(|&row| Chunk::new(row, 7)).collect();
        }
    });
}

fn compare(sets: &DeviceSets, all: &[CountedGroup]) {
    let (mut model, mut by_chunks) = (BTreeMap::new(), BTreeMap::new());
    let of_metadata = all.iter().filter(|g| g.kind == GroupKind::Metadata).count();
    assert_eq!(sets.of_metadata(), of_metadata as u64);
    for g in all.iter().filter(|g| g.kind != GroupKind::Free) {
        let of: &mut (u64, u64) = model.entry(g.set()).or_default();
        *of = (of.0 + 1, of.1 + u64::from(g.used));
        *by_chunks.entry(g.chunks.len()).or_insert(0) += 1;
    }
    let used = sets.used().map(|(set, used)| (set.clone(), used));
    let now: Vec<_> =
        sets.after(None).zip(used).map(|((_, n), (s, used))| (s, (n, used))).collect();
    assert_eq!(now, model.into_iter().collect::<Vec<_>>());
    assert_eq!(sets.by_chunks().collect::<BTreeMap<_, _>>(), by_chunks);
    let in_use = all.iter().filter(|g| g.kind != GroupKind::Free).count();
    assert_eq!(sets.in_use(), in_use as u64);
    let on = |row: usize| move |c: &&Chunk| usize::from(c.device) == row;
    for row in 0..5 {
        let chunks = || all.iter().flat_map(|g| g.chunks.iter().map(move |c| (g, c)));
        let there = || chunks().filter(|(_, c)| on(row)(c));
        assert_eq!(sets.chunks_on(row), there().count() as u64);
        assert_eq!(sets.used_on(row), there().map(|(g, _)| u64::from(g.used)).sum::<u64>());
        let behind: BTreeSet<GroupId> =
            there().filter(|(_, c)| c.behind).map(|(g, _)| g.id).collect();
        assert_eq!(sets.behind(row), &behind);
        assert_eq!(sets.behind_on(row), behind.len() as u64);
    }
    let rows: BTreeSet<usize> =
        all.iter().flat_map(|g| &g.chunks).map(|c| c.device.into()).collect();
    assert!(sets.rows().eq(rows));
}

fn naively_lacked(all: &[CountedGroup], row: usize, since: Generation) -> u64 {
    let is_it = |c: &Chunk| c.behind && usize::from(c.device) == row;
    let behind = all.iter().filter(|g| g.chunks.iter().any(is_it));
    let lacks = |g: &CountedGroup| {
        let pages = (0..).zip(&g.bitmap_generations).filter(|(_, changed)| **changed > since);
        let blocks: u32 = pages.map(|(page, _)| GEOMETRY.bits_of_page(page)).sum();
        u64::from(blocks.min(g.used))
    };
    behind.map(lacks).sum()
}
