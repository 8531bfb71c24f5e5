//! Transactions, their progress and requests against a naive model: a list of generations, and sets
//! of blocks.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use base::{Epoch, ErrorKind, PoolAddr, Prng};
use rt::{Order, Rt};
use sim::World;

use super::*;
use crate::space::tests::set_aside;

/// No two runs of the lists are joined.
const GROUP: u32 = 1 << 30;

#[derive(Default)]
struct Model {
    allocs: BTreeSet<u64>,
    frees: BTreeSet<u64>,
    /// Generations in which trees have joined passes, of it or of those that have joined it.
    joined: BTreeSet<u64>,
    cut: Option<Epoch>,
    /// There is something to commit.
    dirty: bool,
}

/// What a commit has frozen, and what it has gathered of that.
struct Frozen {
    txn: Txn,
    frees: Option<Vec<Vec<Run>>>,
}

struct Bench {
    rng: Prng,
    txns: Progress,
    frozen: Option<Frozen>,
    /// The model: transactions that are open, the one that is being committed, and generations that
    /// are durable.
    open: Model,
    pass: Option<Model>,
    committing: Option<Model>,
    durable: Vec<u64>,
    known: u64,
    /// Blocks that are in use, and those that may be used again.
    live: BTreeSet<u64>,
    free: BTreeSet<u64>,
    next: u64,
    volumes: u32,
}

fn run(block: u64) -> Run {
    Run { addr: PoolAddr(block), len: 1 }
}

fn blocks<'a>(lists: impl IntoIterator<Item = &'a Vec<Run>>) -> BTreeSet<u64> {
    let runs: Vec<u64> = lists.into_iter().flatten().map(|r| r.addr.0).collect();
    let set: BTreeSet<u64> = runs.iter().copied().collect();
    assert_eq!(set.len(), runs.len(), "a block is in two lists");
    set
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let first = Generation(1 << 32);
        Bench {
            rng: Prng::new(seed),
            txns: Progress::new(Generation(7), Generation(5), first, 40, Birth(0)),
            frozen: None,
            open: Model::default(),
            pass: None,
            committing: None,
            durable: vec![7],
            known: 5,
            live: BTreeSet::new(),
            free: BTreeSet::new(),
            next: 0,
            volumes: 0,
        }
    }

    /// A transaction that is open, and its model.
    fn txn(&mut self, kind: Kind) -> Option<(&mut Txn, &mut Model)> {
        let model = match kind {
            Kind::Direct => Some(&mut self.open),
            Kind::Pass => self.pass.as_mut(),
        };
        let txn = self.txns.txn_mut(kind);
        assert_eq!(txn.is_ok(), model.is_some());
        Some((txn.ok()?, model?))
    }

    /// Takes a block that may be used, and enters it. A pass has it for itself until it is merged.
    fn write(&mut self, kind: Kind) {
        let block = self.free.pop_first().unwrap_or_else(|| {
            self.next += 2;
            self.next
        });
        let (open, volume) = (self.txns.generations(), VolumeId(self.volumes));
        self.volumes += 1;
        let Some((txn, model)) = self.txn(kind) else {
            self.free.insert(block);
            return;
        };
        txn.note_alloc(run(block), GROUP);
        assert!(model.allocs.insert(block));
        match kind {
            Kind::Direct => txn.join_volume(volume, open.open),
            Kind::Pass => {
                txn.join_mapping(volume, open.of_pass(), 1);
                model.joined.insert(open.of_pass().0);
            }
        }
        model.dirty = true;
        if kind == Kind::Direct {
            self.live.insert(block);
        }
    }

    /// Frees a block that is in use.
    fn discard(&mut self, kind: Kind) {
        let at = self.rng.below(self.live.len().max(1) as u64) as usize;
        let Some(block) = self.live.iter().nth(at).copied() else { return };
        let Some((txn, model)) = self.txn(kind) else { return };
        txn.note_free(run(block), GROUP);
        model.frees.insert(block);
        model.dirty = true;
        self.live.remove(&block);
    }

    fn begin_pass(&mut self) {
        let mut room = set_aside().reserve(9);
        assert_eq!(self.txns.begin_pass(&mut room).is_ok(), self.pass.is_none());
        self.pass.get_or_insert_default();
    }

    /// The pass joins the open transaction: all of it is in the next commit, and nothing before.
    fn merge(&mut self) {
        let Some(model) = self.pass.take() else { return };
        let pass = self.txns.take_pass().expect("it is open");
        let cut = PublishedCut { epoch: Epoch(self.volumes), taken_at: 0 };
        self.txns.open_mut().merge(pass, cut);
        self.live.extend(&model.allocs);
        self.open.allocs.extend(model.allocs);
        self.open.frees.extend(model.frees);
        self.open.joined.extend(model.joined);
        (self.open.cut, self.open.dirty) = (Some(cut.epoch), true);
    }

    /// Nothing of the pass was ever there: what it took is free at once, what it freed is in use.
    fn give_up(&mut self) {
        let Some(model) = self.pass.take() else { return };
        let pass = self.txns.take_pass().expect("it is open");
        let (allocs, room) = pass.into_allocs();
        assert_eq!((blocks([&allocs]), room.map(|r| r.blocks())), (model.allocs.clone(), Some(9)));
        self.free.extend(model.allocs);
        self.live.extend(model.frees);
    }

    /// One step of a commit: the freeze, then what it frees is gathered, then it is durable. Each
    /// may be left out, as if it had failed, and is tried again with the next call.
    fn commit(&mut self) {
        let Some(frozen) = &mut self.frozen else {
            if self.open.dirty {
                let txn = self.txns.freeze();
                assert_eq!(txn.published().map(|cut| cut.epoch), self.open.cut);
                self.frozen = Some(Frozen { txn, frees: None });
                self.committing = Some(std::mem::take(&mut self.open));
            }
            return;
        };
        let model = self.committing.as_mut().expect("it was frozen");
        assert_eq!(blocks(frozen.txn.allocs()), model.allocs);
        let Some(frees) = frozen.frees.take() else {
            frozen.frees = Some(frozen.txn.take_frees().map(|(frees, _)| frees).collect());
            return;
        };
        assert!(frozen.txn.take_frees().all(|(frees, _)| frees.is_empty()), "they are gathered");
        // Only what this commit holds becomes free, and only now.
        assert_eq!(blocks(&frees), model.frees);
        let generation = frozen.txn.generation();
        self.txns.complete(generation);
        self.durable.push(generation.0);
        self.known = generation.0;
        self.free.append(&mut model.frees);
        (self.frozen, self.committing) = (None, None);
    }

    fn check(&self) {
        let g = self.txns.generations();
        let committed = *self.durable.last().expect("never empty");
        assert_eq!((g.committed.0, self.txns.known().0), (committed, self.known));
        let committing = self.frozen.as_ref().map(|f| f.txn.generation());
        assert_eq!((g.committing, self.txns.committing()), (committing, committing));
        assert!(g.open.0 > committed && committing.is_none_or(|c| c.0 + 2 == g.open.0));
        assert!(self.durable.is_sorted(), "generations rise");
        let open = self.txns.open();
        assert_eq!(open.is_clean(), !self.open.dirty);
        assert_eq!(open.published().map(|cut| cut.epoch), self.open.cut);
        assert_eq!(blocks(open.allocs()), self.open.allocs);
        // A device has nothing of a pass before that is durable, though its generations are older.
        let models = [Some(&self.open), self.pass.as_ref(), self.committing.as_ref()];
        let oldest = models.into_iter().flatten().flat_map(|m| &m.joined).min();
        let has = oldest.map_or(self.known, |&oldest| self.known.min(oldest - 1));
        assert_eq!(self.txns.everyone_has().0, has);
        let held = models.into_iter().flatten().flat_map(|m| &m.frees);
        assert!(held.into_iter().all(|block| !self.free.contains(block)));
    }
}

#[test]
fn a_block_is_free_when_the_commit_is_durable_that_frees_it() {
    for seed in 0..40 {
        let mut bench = Bench::new(seed);
        for _ in 0..1500 {
            let kind = if bench.rng.below(3) == 0 { Kind::Pass } else { Kind::Direct };
            match bench.rng.below(16) {
                0..=5 => bench.write(kind),
                6..=9 => bench.discard(kind),
                10 => bench.begin_pass(),
                11 => bench.merge(),
                12 if bench.rng.below(2) == 0 => bench.give_up(),
                13 => {
                    bench.txns.open_mut().need_superblock();
                    bench.open.dirty = true;
                }
                _ => bench.commit(),
            }
            bench.check();
        }
        assert!(bench.durable.len() > 20, "seed {seed}: {} commits", bench.durable.len());
        assert_eq!((bench.txns.next_sequence(), bench.txns.next_sequence()), (41, 42));
    }
}

#[test]
#[should_panic(expected = "1 nodes got addresses, 0 had none")]
fn no_more_nodes_get_addresses_than_are_dirty() {
    let mut txns = Progress::new(Generation(1), Generation(1), Generation(1 << 32), 1, Birth(0));
    drop(txns.freeze());
    txns.nodes_placed(1);
}

/// Tasks ask for commits at random, and a task runs them; some fail. One that asks is woken once by
/// each commit that ends, and is told of the failures since it asked, and of no other.
#[test]
fn those_that_ask_for_a_commit_are_woken_once() {
    for seed in 0..20 {
        let rt = Rt::new(World::new(seed).backend(), Order::Seeded(seed), 16);
        let ended = rt.block_on(body(rt.clone()));
        rt.kill();
        assert_eq!(ended, Some(()), "seed {seed}");
    }
}

async fn body(rt: Rt) {
    let requests = Rc::new(Requests::new());
    let (commits, done) = (Rc::new(Cell::new(0u64)), Rc::new(Cell::new(false)));
    let committer = {
        let (rt, requests) = (rt.clone(), requests.clone());
        let (commits, done) = (commits.clone(), done.clone());
        rt.clone().spawn(async move {
            loop {
                let asked = requests.asked();
                if done.get() {
                    return;
                }
                if !requests.take() {
                    asked.await;
                    continue;
                }
                rt.yield_now().await;
                commits.set(commits.get() + 1);
                if commits.get() % 3 == 0 {
                    let text = format!("commit {}", commits.get());
                    requests.note_failure(StorageError::new(ErrorKind::Io, text));
                }
                requests.tell_ended();
            }
        })
    };
    let ask = |rounds: u64| {
        let (rt, requests, commits) = (rt.clone(), requests.clone(), commits.clone());
        async move {
            for _ in 0..rounds {
                for _ in 0..rt.random() % 4 {
                    rt.yield_now().await;
                }
                let (before, failures) = (commits.get(), requests.failures());
                assert_eq!(requests.error_since(failures).map(|e| e.context), None);
                let ended = requests.ended();
                requests.ask();
                ended.await;
                // Others may have run before this task had its turn.
                let now = commits.get();
                assert!(now > before, "woken by nothing");
                let last = (before + 1..=now).rev().find(|n| n % 3 == 0);
                let told = requests.error_since(failures).map(|e| e.context);
                assert_eq!(told, last.map(|n| format!("commit {n}")));
            }
        }
    };
    let tasks: Vec<_> = (0..8).map(|_| rt.spawn(ask(50))).collect();
    for task in tasks {
        task.await.expect("it ends");
    }
    assert!(commits.get() < 400, "{} commits for 400 requests", commits.get());
    assert!(commits.get() >= 50);
    done.set(true);
    requests.wake_all();
    committer.await.expect("it ends");
}
