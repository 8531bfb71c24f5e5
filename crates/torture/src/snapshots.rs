//! Snapshots under load: taken, of one volume or of several at once, listed, read, renamed and
//! deleted at any time, over crashes. The promises about them stand in the model
//! (`model/snapshots.rs`).
//!
//! Two tasks change snapshots, each of which leaves alone what the other is about; one reads them,
//! also while they are being deleted.

use std::rc::Rc;

use ::model::snapshot::SnapshotName;
use base::{BLOCK_U64, Duration, ErrorKind, StorageError};
use pool::SnapshotInfo;

use crate::env::{Boot, Env};
use crate::front::{Failure, FailureReason, Front, run};
use crate::model::snapshots::{Created, Snapshot, SnapshotDoubt};

/// Of what is larger, the blocks alone are read that something was written to.
pub(crate) const READ_WHOLE: u64 = 64 << 20;

/// The longest ordinary read, in blocks.
const MOST_BLOCKS: u64 = 64;

type Names = Vec<(String, u32, String)>;

/// One change after the other, until the boot ends.
pub(crate) async fn change_all(boot: Rc<Boot>) {
    let env = &boot.env;
    let every = env.settings.changes.snapshots;
    let next = || env.answered.get() + 1 + env.below(4 * every);
    let mut due = next();
    while !env.stopping.get() {
        if env.answered.get() >= due {
            change(&boot).await;
            due = next();
        }
        boot.rt.sleep(Duration::from_micros(1 + env.below(5000))).await;
    }
}

async fn change(boot: &Rc<Boot>) {
    let env = &boot.env;
    let full = env.model.borrow().snapshots().count() >= env.settings.changes.kept_snapshots;
    let settled = env.model.borrow().settled_snapshots();
    let some = |n: usize| settled[env.below(n as u64) as usize];
    match env.below(16) {
        0..8 if !full => take(boot).await,
        8 if !settled.is_empty() => rename(boot, some(settled.len())).await,
        9 => list(boot),
        10 if !settled.is_empty() => refused(boot, some(settled.len())).await,
        _ if !settled.is_empty() && (full || env.one_in(2)) => {
            delete(boot, some(settled.len())).await;
        }
        _ => {}
    }
}

fn full_name(s: &Snapshot) -> SnapshotName {
    SnapshotName { volume: s.volume.clone(), name: s.name().to_owned() }
}

fn name_of(env: &Env, number: u64) -> Option<SnapshotName> {
    env.model.borrow().snapshot(number).map(full_name)
}

/// The pool's word on a snapshot.
fn found(boot: &Boot, name: &SnapshotName) -> Option<SnapshotInfo> {
    boot.volumes.pool().snapshots().find(&name.volume, &name.name)
}

/// Some volumes that are there, each with a name that its snapshots do not have.
fn wanted(env: &Env) -> Names {
    let mut live = env.model.borrow().live();
    let most = if env.one_in(3) { live.len() } else { 1 };
    let mut wanted = Vec::new();
    while wanted.len() < most && !live.is_empty() {
        let (volume, id) = live.swap_remove(env.below(live.len() as u64) as usize);
        let name = format!("s{}", env.below(1000));
        let model = env.model.borrow();
        if !model.snapshots_of(id).any(|(_, s)| s.names.contains(&name)) {
            wanted.push((volume, id, name));
        }
    }
    wanted
}

async fn take(boot: &Rc<Boot>) {
    let env = &boot.env;
    let wanted = wanted(env);
    if wanted.is_empty() {
        return;
    }
    let names: Vec<SnapshotName> = wanted
        .iter()
        .map(|(volume, _, name)| SnapshotName { volume: volume.clone(), name: name.clone() })
        .collect();
    let creation = env.model.borrow_mut().begin_snapshots(&wanted);
    begins(env, creation.op, wanted[0].1, &format!("takes {}", told(&names)));
    let outcome = boot.volumes.take_snapshots(&names).await;
    ends(env, creation.op, outcome.as_ref().map(|_| ()));
    env.count("snapshots: creations", 1);
    env.count("snapshots: creations of several at once", u64::from(names.len() > 1));
    let how = match &outcome {
        Ok(_) => Created::Yes,
        Err(_) if has_ended(boot) => Created::Perhaps,
        Err(_) => Created::No,
    };
    env.model.borrow_mut().end_snapshots(&creation, how);
    match outcome {
        Ok(taken) => {
            for (number, name) in creation.numbers.iter().zip(&names) {
                look(boot, *number, name, &taken);
            }
        }
        Err(e) => {
            judge_take(env, &wanted, &e);
            if how == Created::No && names.iter().any(|name| found(boot, name).is_some()) {
                env.fail(format!("snapshots could not be taken, and are there: {e}"));
            }
        }
    }
}

/// A snapshot was taken: it is there, and it is what was told of it.
fn look(boot: &Boot, number: u64, name: &SnapshotName, taken: &[SnapshotInfo]) {
    let env = &boot.env;
    // The other task may have deleted or renamed it by now.
    let is_it = |s: &Snapshot| s.is_settled() && full_name(s) == *name;
    if !env.model.borrow().snapshot(number).is_some_and(is_it) {
        return;
    }
    let Some(info) = found(boot, name) else {
        env.fail(format!("snapshot {name} was just taken, and is not there"))
    };
    if !taken.contains(&info) {
        env.fail(format!("snapshot {name} is {info:?}, and this was told of it: {taken:?}"));
    }
    if let Err(text) = env.model.borrow_mut().see_snapshot_info(number, &info) {
        env.fail(text);
    }
}

fn judge_take(env: &Env, wanted: &Names, e: &StorageError) {
    env.count("snapshots: creations that failed", 1);
    let dying = wanted.iter().any(|w| env.model.borrow().volume(w.1).is_none_or(|v| v.dying));
    let allowed = match e.kind {
        ErrorKind::NotFound => dying,
        ErrorKind::Limit => {
            env.count("snapshots: creations for which no place was free", 1);
            true
        }
        // What the cache alone has comes to the pool first, and may find no room there.
        ErrorKind::NoSpace => true,
        ErrorKind::Io | ErrorKind::Damaged | ErrorKind::Missing | ErrorKind::Unreachable => {
            env.errors_allowed() || env.unreachable.borrow().any()
        }
        _ => false,
    };
    if !allowed {
        env.fail(format!("taking snapshots failed: {:?}: {e}", e.kind));
    }
}

/// The pool takes no more writes: the next open tells what has happened.
fn has_ended(boot: &Boot) -> bool {
    boot.volumes.pool().status().pool.trouble.is_some()
}

async fn delete(boot: &Rc<Boot>, number: u64) {
    let env = &boot.env;
    let (Some(name), of) = (name_of(env, number), of(env, number)) else { return };
    env.model.borrow_mut().begin_snapshot_change(number, SnapshotDoubt::Deleting);
    let op = env.model.borrow_mut().begin_flush() | 1 << 61;
    begins(env, op, of, &format!("deletes {name}"));
    let outcome = boot.volumes.delete_snapshot(&name).await;
    ends(env, op, outcome.as_ref().map(|_| ()));
    env.count("snapshots: deletions", 1);
    match outcome {
        Ok(()) => {
            env.model.borrow_mut().forget_snapshot(number);
            let names = |s: &Snapshot| s.volume == name.volume && s.names.contains(&name.name);
            let again = env.model.borrow().snapshots().any(|(_, s)| names(s));
            if !again && found(boot, &name).is_some() {
                env.fail(format!("snapshot {name} was deleted, and is there"));
            }
        }
        Err(e) => judge_change(env, "deleting a snapshot", &e),
    }
}

fn of(env: &Env, number: u64) -> u32 {
    env.model.borrow().snapshot(number).map_or(0, |s| s.of)
}

async fn rename(boot: &Rc<Boot>, number: u64) {
    let env = &boot.env;
    let (Some(name), of) = (name_of(env, number), of(env, number)) else { return };
    let to = format!("s{}", env.below(1000));
    let taken = {
        let model = env.model.borrow();
        let mut others = model.snapshots_of(of).filter(|(other, _)| *other != number);
        others.any(|(_, s)| s.names.contains(&to))
    };
    if taken {
        return;
    }
    env.model.borrow_mut().begin_snapshot_change(number, SnapshotDoubt::Renaming);
    env.model.borrow_mut().doubt_name(number, &to);
    let op = env.model.borrow_mut().begin_flush() | 1 << 61;
    begins(env, op, of, &format!("renames {name} to {to}"));
    let outcome = boot.volumes.rename_snapshot(&name, &to).await;
    ends(env, op, outcome.as_ref().map(|_| ()));
    env.count("snapshots: changes of names", 1);
    match outcome {
        Ok(()) => env.model.borrow_mut().settle_snapshot(number, &to),
        Err(e) => judge_change(env, "renaming a snapshot", &e),
    }
}

/// What cannot be is refused, and changes nothing.
async fn refused(boot: &Rc<Boot>, number: u64) {
    let env = &boot.env;
    let Some(name) = name_of(env, number) else { return };
    env.model.borrow_mut().begin_snapshot_change(number, SnapshotDoubt::Renaming);
    let (what, outcome, kind) = match env.below(4) {
        0 => {
            let outcome = boot.volumes.take_snapshots(std::slice::from_ref(&name)).await;
            ("taken again", outcome.map(|_| ()), ErrorKind::Exists)
        }
        1 => ("its volume deleted", boot.volumes.delete(&name.volume).await, ErrorKind::Invalid),
        2 => {
            let none = SnapshotName { name: "none".to_owned(), ..name.clone() };
            ("another one deleted", boot.volumes.delete_snapshot(&none).await, ErrorKind::NotFound)
        }
        _ => ("written", write(boot, &name).await, ErrorKind::NotFound),
    };
    env.count("snapshots: changes that are refused", 1);
    env.model.borrow_mut().settle_snapshot(number, &name.name);
    match outcome {
        Err(e) if e.kind == kind => {}
        // A write looks for room first.
        Err(e) if what == "written" && e.kind == ErrorKind::NoSpace => {}
        // The pool may take no writes at all.
        Err(e) => judge_change(env, what, &e),
        Ok(()) => env.fail(format!("snapshot {name}: {what}, and that was not refused")),
    }
}

async fn write(boot: &Rc<Boot>, name: &SnapshotName) -> Result<(), StorageError> {
    let env = &boot.env;
    let Some(v) = boot.volumes.open(&name.to_string()) else {
        env.fail(format!("snapshot {name} cannot be opened"))
    };
    if !v.is_read_only() {
        env.fail(format!("snapshot {name} is not read-only"));
    }
    if v.size() >= BLOCK_U64 && env.one_in(2) {
        return v.discard(0, v.size()).await;
    }
    let mut data = boot.rt.bufs().take(BLOCK_U64.min(v.size()) as usize);
    data.fill(1);
    v.write(0, data.freeze()).await
}

fn judge_change(env: &Env, what: &str, e: &StorageError) {
    env.count("snapshots: changes that failed", 1);
    let allowed = match e.kind {
        ErrorKind::NoSpace => env.host_full.get(),
        ErrorKind::Io | ErrorKind::Damaged | ErrorKind::Missing => env.errors_allowed(),
        _ => false,
    };
    if !allowed {
        env.fail(format!("{what} failed: {:?}: {e}", e.kind));
    }
}

/// Compares the list with what there is for sure, and what there may be.
fn list(boot: &Boot) {
    let env = &boot.env;
    env.count("snapshots: lists", 1);
    let listed = match boot.volumes.snapshots(None) {
        Ok(listed) => listed,
        Err(e) => env.fail(format!("a list of the snapshots: {e}")),
    };
    let model = env.model.borrow();
    for (_, s) in model.snapshots().filter(|(_, s)| s.is_settled()) {
        let is_it = |l: &::model::snapshot::Snapshot| l.volume == s.volume && l.name == *s.name();
        let Some(l) = listed.iter().find(|l| is_it(l)) else {
            env.fail(format!("snapshot {} is not in the list: {listed:?}", full_name(s)))
        };
        if !s.sizes.contains(&l.size_bytes) || l.sector_bytes != s.sector {
            env.fail(format!("a snapshot should have {:?} bytes: {l:?}", s.sizes));
        }
    }
    for l in &listed {
        let may_be = |s: &Snapshot| s.volume == l.volume && s.names.contains(&l.name);
        if !model.snapshots().any(|(_, s)| may_be(s)) {
            env.fail(format!("a snapshot that was deleted is in the list: {l:?}"));
        }
    }
}

/// Reads some snapshots, until the boot ends.
pub(crate) async fn read_all(boot: Rc<Boot>) {
    let env = &boot.env;
    while !env.stopping.get() {
        boot.rt.sleep(Duration::from_micros(1 + env.below(20_000))).await;
        let settled = env.model.borrow().settled_snapshots();
        if settled.is_empty() || env.resting.get() {
            continue;
        }
        let number = settled[env.below(settled.len() as u64) as usize];
        read_some(&boot, number).await;
    }
}

async fn read_some(boot: &Rc<Boot>, number: u64) {
    let env = &boot.env;
    let Some((front, size)) = open(boot, number) else { return };
    if env.one_in(8) {
        compare_extents(boot, number, &front, size).await;
        return;
    }
    let known = env.model.borrow().snapshot(number).map(Snapshot::known_blocks).unwrap_or_default();
    let blocks = size.div_ceil(BLOCK_U64);
    let first = match known.is_empty() || env.one_in(4) {
        true => env.below(blocks),
        false => known[env.below(known.len() as u64) as usize].min(blocks - 1),
    };
    let offset = first * BLOCK_U64;
    let len = ((1 + env.below(MOST_BLOCKS)) * BLOCK_U64).min(size - offset);
    env.count("snapshots: reads", 1);
    compare(boot, number, &front, offset, len).await;
}

/// A way to a snapshot, and its size; `None`: it is about to go.
fn open(boot: &Boot, number: u64) -> Option<(Front, u64)> {
    let env = &boot.env;
    let name = name_of(env, number)?;
    let Some(volume) = boot.volumes.open(&name.to_string()) else {
        env.fail(format!("snapshot {name} cannot be opened"))
    };
    let size = volume.size();
    let sizes = env.model.borrow().snapshot(number).map(|s| s.sizes.clone())?;
    if !sizes.contains(&size) {
        env.fail(format!("snapshot {name} has {size} bytes, and should have {sizes:?}"));
    }
    Some((Front::Direct(volume, boot.rt.clone()), size))
}

/// Whether it may be that a snapshot cannot be read: it is about to go.
fn may_be_gone(env: &Env, number: u64) -> bool {
    let model = env.model.borrow();
    model.snapshot(number).is_none_or(|s| s.doubt == SnapshotDoubt::Deleting)
}

/// Whether some of its data may be out of reach. No snapshot needs what a cache has.
fn may_be_unreadable(env: &Env, number: u64) -> bool {
    let lost = env.unreachable.borrow();
    env.beyond() || env.failing.get() || env.cannot_reach(of(env, number)) || lost.checksums()
}

/// Reads a range, and compares it.
async fn compare(boot: &Rc<Boot>, number: u64, front: &Front, offset: u64, len: u64) {
    let env = &boot.env;
    let (id, f) = (of(env, number), front.clone());
    match run(&boot.rt, async move { f.read(offset, len).await }).await {
        Ok(data) => {
            let verdict = env.model.borrow_mut().see_snapshot(number, offset, &data);
            match verdict {
                Ok(too_hard) => env.count("blocks that could not be judged", too_hard),
                Err(m) => {
                    let name = name_of(env, number).map(|n| n.to_string()).unwrap_or_default();
                    env.fail_at(id, m.block, &format!("in snapshot {name}\n{}", m.text))
                }
            }
        }
        Err(e) => judge_read(env, number, &e),
    }
}

fn judge_read(env: &Env, number: u64, e: &Failure) {
    let allowed = match e.why {
        FailureReason::Gone => may_be_gone(env, number),
        FailureReason::Io => may_be_unreadable(env, number),
        // Out of range is everything of a snapshot that is gone.
        _ => false,
    };
    env.count("snapshots: reads that failed", 1);
    if !allowed {
        let name = name_of(env, number).map(|n| n.to_string());
        env.fail(format!("a read of snapshot {name:?} failed: {}", e.text));
    }
}

/// Compares what is allocated with what may be, and what must be.
async fn compare_extents(boot: &Rc<Boot>, number: u64, front: &Front, size: u64) {
    let env = &boot.env;
    let f = front.clone();
    let parts = match run(&boot.rt, async move { f.extents(0, size).await }).await {
        Ok(parts) => parts,
        Err(e) => return judge_read(env, number, &e),
    };
    env.count("snapshots: extents", 1);
    let mut at = 0;
    for (len, allocated) in parts {
        let blocks = at / BLOCK_U64..(at + len).div_ceil(BLOCK_U64);
        at += len;
        let wrong = {
            let model = env.model.borrow();
            let Some(s) = model.snapshot(number) else { return };
            let judged: Vec<u64> = match allocated {
                true => blocks.collect(),
                false => s.known_blocks().into_iter().filter(|b| blocks.contains(b)).collect(),
            };
            judged.into_iter().find(|b| match (s.takes(*b), allocated) {
                ((_, perhaps), true) => !perhaps,
                ((sure, _), false) => sure,
            })
        };
        if let Some(block) = wrong {
            let text = format!("in a snapshot it is allocated: {allocated}");
            env.fail_at(of(env, number), block, &text);
        }
    }
}

/// Reads all snapshots as a whole and compares them.
pub(crate) async fn verify(boot: &Rc<Boot>) {
    let env = &boot.env;
    let settled = env.model.borrow().settled_snapshots();
    for number in settled {
        let Some((front, size)) = open(boot, number) else { continue };
        let step = (1 + env.below(256)) * BLOCK_U64;
        for (offset, len) in ranges(env, number, size, step) {
            compare(boot, number, &front, offset, len).await;
        }
        compare_extents(boot, number, &front, size).await;
        env.count("snapshots: read as a whole", 1);
    }
    list(boot);
}

/// All of it, in pieces; of a large one what may hold something.
fn ranges(env: &Env, number: u64, size: u64, step: u64) -> Vec<(u64, u64)> {
    let piece = |at: u64, step: u64| (at, step.min(size - at));
    if size <= READ_WHOLE {
        return (0..size).step_by(step as usize).map(|at| piece(at, step)).collect();
    }
    let known = env.model.borrow().snapshot(number).map(Snapshot::known_blocks).unwrap_or_default();
    let inside = known.into_iter().map(|block| block * BLOCK_U64).filter(|at| *at < size);
    inside.map(|at| piece(at, BLOCK_U64)).collect()
}

/// Deletes all snapshots, or those of a volume, in any order. No faults happen any more.
pub(crate) async fn delete_all(boot: &Rc<Boot>, of: Option<u32>) {
    let env = &boot.env;
    let mut left: Vec<u64> = {
        let model = env.model.borrow();
        let of = |s: &Snapshot| of.is_none_or(|id| s.of == id);
        model.snapshots().filter(|(_, s)| of(s)).map(|(number, _)| number).collect()
    };
    while !left.is_empty() {
        let number = left.swap_remove(env.below(left.len() as u64) as usize);
        delete(boot, number).await;
        if env.one_in(8) {
            boot.rt.sleep(Duration::from_micros(env.below(1_000_000))).await;
        }
    }
}

fn told(names: &[SnapshotName]) -> String {
    names.iter().map(SnapshotName::to_string).collect::<Vec<_>>().join(", ")
}

fn begins(env: &Env, op: u64, volume: u32, what: &str) {
    env.begins(op, volume, "change of snapshots", 0, 0);
    env.note(format!("op {op}: {what}"));
    env.note_change();
}

fn ends(env: &Env, op: u64, outcome: Result<(), &StorageError>) {
    let how = match outcome {
        Ok(()) => "done".to_owned(),
        Err(e) => format!("failed: {:?}: {e}", e.kind),
    };
    env.note(format!("op {op}: {how}"));
    env.ends(op, how);
    env.note_change();
}
