use base::Prng;

use super::*;

/// Groups, by the devices that they have chunks of and the number that they are to get.
pub type Groups = Vec<(Rows, usize)>;

fn no_end() -> Work {
    Work { done: 0, most: u64::MAX }
}

/// All devices but those of `has`.
fn others(has: Rows, free: &[u64]) -> Rows {
    ((1 << free.len()) - 1) & !has
}

fn flow(groups: &[(Rows, usize)], free: &[u64]) -> Flow {
    let mut alike: BTreeMap<(Rows, usize), u64> = BTreeMap::new();
    groups.iter().for_each(|&group| *alike.entry(group).or_default() += 1);
    let mut flow = Flow::new(free);
    for ((has, gets), n) in alike {
        flow.add(others(has, free), n, gets);
        assert!(flow.settle(&mut no_end()));
    }
    flow
}

pub fn left(groups: &[(Rows, usize)], free: &[u64]) -> u64 {
    flow(groups, free).left()
}

/// The devices that are chosen for one more group.
fn choose(
    groups: &[(Rows, usize)],
    own: (Rows, usize),
    order: &[usize],
    free: &[u64],
) -> Vec<usize> {
    let mut all = flow(groups, free);
    all.add(others(own.0, free), 1, own.1);
    assert!(all.settle(&mut no_end()));
    all.choose(own.1, order)
}

/// The most chunks that these groups can get, by trying all ways.
pub fn most(groups: &[(Rows, usize)], free: &mut [u64]) -> u64 {
    let Some((&(has, gets), others)) = groups.split_first() else { return 0 };
    let sets = (0..1 << free.len()).filter(|set: &Rows| {
        set & has == 0
            && set.count_ones() as usize <= gets
            && rows_of(*set).all(|row| free[row] > 0)
    });
    let sets: Vec<Rows> = sets.collect();
    let mut best = 0;
    for set in sets {
        rows_of(set).for_each(|row| free[row] -= 1);
        best = best.max(u64::from(set.count_ones()) + most(others, free));
        rows_of(set).for_each(|row| free[row] += 1);
    }
    best
}

/// A few groups on a few devices, and what is free there.
pub fn case(rng: &mut Prng) -> (Groups, Vec<u64>) {
    let n = rng.range(1, 5) as usize;
    let free = (0..n).map(|_| rng.range(0, 4)).collect();
    let group = |rng: &mut Prng| (Rows::from(rng.range(0, 1 << n)), rng.range(1, 3) as usize);
    ((0..rng.range(1, 6)).map(|_| group(rng)).collect(), free)
}

#[test]
fn what_finds_no_room_is_what_no_way_of_placing_it_finds_room_for() {
    let mut rng = Prng::new(1);
    for _ in 0..3000 {
        let (groups, mut free) = case(&mut rng);
        let all: u64 = groups.iter().map(|g| g.1 as u64).sum();
        let chunks = all - most(&groups, &mut free);
        let found = flow(&groups, &free);
        assert_eq!(found.left(), chunks, "{groups:?} {free:?}");
        for row in 0..free.len() {
            free[row] += 1;
            let helps = left(&groups, &free) < chunks;
            assert_eq!(helps, found.in_the_way() >> row & 1 == 1, "{groups:?} {free:?} {row}");
            free[row] -= 1;
        }
    }
}

/// Each group takes its chunks without knowing what comes later.
#[test]
fn what_finds_room_together_finds_it_one_by_one() {
    let (mut rng, mut seen) = (Prng::new(2), 0);
    for _ in 0..3000 {
        let (mut groups, mut free) = case(&mut rng);
        if left(&groups, &free) > 0 {
            continue;
        }
        seen += 1;
        while let Some((has, gets)) = groups.pop() {
            let order = order(has, &free);
            let chosen = choose(&groups, (has, gets), &order, &free);
            assert_eq!(chosen.len(), gets);
            // It has the best ones that leave room for the others.
            let mut best = Vec::new();
            for &row in &order {
                let with: Vec<usize> = best.iter().copied().chain([row]).collect();
                let may = |all: &[usize]| {
                    let (mut free, mut has) = (free.clone(), has);
                    all.iter().for_each(|&row| (free[row], has) = (free[row] - 1, has | 1 << row));
                    let own = (has, gets - all.len());
                    let all: Groups = groups.iter().copied().chain([own]).collect();
                    left(&all, &free) == 0
                };
                if best.len() < gets && may(&with) {
                    best = with;
                }
            }
            assert_eq!(chosen, best);
            chosen.iter().for_each(|&row| free[row] -= 1);
            assert_eq!(left(&groups, &free), 0);
        }
    }
    assert!(seen > 500, "{seen}");
}

/// The devices of which a group may get chunks.
fn order(has: Rows, free: &[u64]) -> Vec<usize> {
    let may = |row: &usize| has & 1 << row == 0 && free[*row] > 0;
    let mut order: Vec<usize> = (0..free.len()).filter(may).collect();
    order.sort_by_key(|&row| std::cmp::Reverse(free[row]));
    order
}

/// Where not all finds room, a choice does not make that worse.
#[test]
fn a_choice_costs_no_room() {
    let (mut rng, mut seen) = (Prng::new(6), 0);
    for _ in 0..3000 {
        let (mut groups, mut free) = case(&mut rng);
        let before = left(&groups, &free);
        let Some((has, gets)) = groups.pop() else { continue };
        let order = order(has, &free);
        if before == 0 || order.len() < gets {
            continue;
        }
        seen += 1;
        let chosen = choose(&groups, (has, gets), &order, &free);
        assert_eq!(chosen.len(), gets);
        chosen.iter().for_each(|&row| free[row] -= 1);
        assert_eq!(left(&groups, &free), before, "{groups:?} {has} {gets} {free:?} {chosen:?}");
    }
    assert!(seen > 500, "{seen}");
}
