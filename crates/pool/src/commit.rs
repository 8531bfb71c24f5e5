//! Commit: makes a transaction durable, in the background.
//!
//! 1. *Freeze*, in O(1): the open transaction is taken, the next one opens. This is all that others wait for.
//! 2. The changed nodes of its trees get addresses and are written; nothing refers to them yet, so their order is of no matter.
//! 3. Bitmaps take in what was allocated and freed; pages whose content changed are written to their other slot, on every device, while the nodes
//!    may still be on their way.
//! 4. When all that is written, all devices are flushed; then the superblocks are written and flushed. From now on this state is the pool.
//! 5. What it freed may be used again as soon as no read is about it any more, and all who waited are told.
//!
//! A commit that fails before the flush keeps its frozen transaction and is tried again, as a whole, at the next request; until then nothing of it counts. The flush and
//! the superblocks ([`durable`](crate::durable)) have no second try: they succeed, if need be without a device, or the pool's [standing](crate::standing) ends. So does
//! it with a free of what is not allocated; that is found before the bitmaps are changed.
//!
//! One commit at a time; whoever asks while one runs shares the next.

use std::collections::{BTreeMap, BTreeSet};

use base::{Bitmap, Buf, Generation, GroupId, SliceList, VolumeId};
use btree::{NodePtr, Tree, WriteOut};
use format::node::RootPtr;
use format::page::{BITS_PER_PAGE, VolumeRecord, page_digest};
use queue::Class;

use crate::Pool;
use crate::durable::Durable;
use crate::error::{ErrorKind, PoolError, Result};
use crate::extents::{Run, push_run};
use crate::node_writer::NodeWriter;
use crate::standing::Permit;
use crate::state::{Maps, State};
use crate::txn::Txn;
use crate::writes::Writes;

/// Trees or pages that are dealt with before other tasks get a turn.
const SLICE: usize = 64;
/// And runs, or blocks of replaced nodes.
const RUNS: usize = 256;
/// A frozen transaction on its way to the devices. What has been done is kept, so that a second try goes on from there.
pub(crate) struct Frozen {
    txn: Txn,
    volumes: Vec<(VolumeId, VolumeRecord, bool, Tree)>,
    checksums: Vec<(GroupId, Tree)>,
    captured: bool,
    /// Blocks of nodes that this commit has written.
    node_blocks: Vec<Run>,
    /// Allocations and frees are in the bitmaps.
    applied: bool,
    /// What it frees, gathered.
    frees: Vec<Vec<Run>>,
    /// Bitmap pages as they were before, as far as they were touched.
    before: BTreeMap<(GroupId, u32), Vec<u64>>,
    touched_groups: BTreeSet<GroupId>,
    /// Pages that this commit writes: bitmap pages and table pages, each into the slot that is not the committed one.
    bitmap_pages: Vec<(GroupId, u32)>,
    table_pages: BTreeSet<u32>,
}

impl Frozen {
    fn new(txn: Txn) -> Frozen {
        Frozen {
            txn,
            volumes: Vec::new(),
            checksums: Vec::new(),
            captured: false,
            node_blocks: Vec::new(),
            applied: false,
            frees: Vec::new(),
            before: BTreeMap::new(),
            touched_groups: BTreeSet::new(),
            bitmap_pages: Vec::new(),
            table_pages: BTreeSet::new(),
        }
    }

    pub fn generation(&self) -> Generation {
        self.txn.generation()
    }

    /// What is allocated (true), then what is freed, in slices.
    fn changes(&self) -> impl Iterator<Item = (&[Run], bool)> {
        let rounds = self.txn.rounds.iter().map(|r| &r.allocs);
        let allocs = rounds.chain([&self.txn.allocs, &self.node_blocks]);
        let allocs = allocs.flat_map(|list| list.chunks(RUNS)).map(|part| (part, true));
        allocs.chain(self.frees.iter().flat_map(|list| list.chunks(RUNS)).map(|part| (part, false)))
    }
}

impl Pool {
    /// Runs one commit, or the rest of one that failed.
    pub(crate) async fn run_commit(&self) -> Result<()> {
        let permit = self.permit()?;
        let started = self.rt().now();
        let mut frozen = match self.take_frozen() {
            Some(frozen) => frozen,
            None => self.freeze(permit),
        };
        match self.write_frozen(&mut frozen).await {
            Ok(durable) => {
                self.complete(durable, frozen);
                let took = self.rt().now().since(started);
                {
                    let mut m = self.metrics_mut();
                    m.count += 1;
                    m.duration.record(took);
                }
                self.tell_committed();
                self.tidy_up().await;
                Ok(())
            }
            Err(e) => {
                self.metrics_mut().failed += 1;
                self.keep_frozen(frozen);
                self.give_up_creations();
                // The clock tries it again.
                self.0.dirtied.notify();
                Err(e)
            }
        }
    }

    fn freeze(&self, _: Permit) -> Frozen {
        let from = self.rt().precise_now();
        let frozen = {
            let mut st = self.state_mut();
            let generation = st.open.generation();
            st.publishing = st.open.published;
            st.committing = Some(generation);
            st.committing_nodes = st.open.nodes.dirty() as u64;
            Frozen::new(std::mem::replace(&mut st.open, Txn::new(Generation(generation.0 + 2))))
        };
        let took = self.rt().precise_now().since(from);
        self.metrics_mut().critical_section.record(took);
        frozen
    }

    async fn write_frozen(&self, frozen: &mut Frozen) -> Result<Durable> {
        let mut writes = Writes::new();
        let before = self.0.before_commit.borrow().clone();
        if let Some(before) = before {
            let (pool, before) = (self.clone(), before());
            let marked = async move {
                // Nothing said of a cache: what was said of it before stays.
                if let Some(mark) = before.await? {
                    pool.state_mut().cache_mark = Some(mark);
                }
                Ok(())
            };
            writes.add(self.rt().spawn(marked)).await;
        }
        let sent = self.send_frozen(frozen, &mut writes).await;
        // Also after a failure: what is under way must end before anything is tried again.
        let written = writes.finish().await;
        let flushed = self.flush_devices(sent.and(written)?).await?;
        self.write_superblocks(flushed, frozen.generation(), self.next_digest(frozen)).await
    }

    /// Steps 2 and 3, up to all writes being under way.
    async fn send_frozen(&self, frozen: &mut Frozen, writes: &mut Writes) -> Result<()> {
        self.capture(frozen).await;
        let roots = self.write_nodes(frozen, writes).await?;
        self.apply(frozen).await?;
        self.enter_roots(frozen, &roots);
        self.plan_pages(frozen).await;
        self.write_pages(frozen, writes).await;
        Ok(())
    }

    /// Takes the trees as they were at the freeze; from here on edits of the open transaction need not keep them.
    async fn capture(&self, frozen: &mut Frozen) {
        if frozen.captured {
            return;
        }
        let g = frozen.generation();
        let volumes: Vec<_> = frozen.txn.volumes.iter().copied().collect();
        for part in volumes.chunks(SLICE) {
            {
                let mut st = self.state_mut();
                for &id in part {
                    if let Some(v) = st.volumes.get_mut(&id) {
                        let (record, gone, tree) = v.take_frozen(g);
                        frozen.volumes.push((id, record, gone, tree));
                    }
                }
            }
            self.breathe(part.len()).await;
        }
        let groups: Vec<_> = frozen.txn.checksums.iter().copied().collect();
        for part in groups.chunks(SLICE) {
            {
                let mut st = self.state_mut();
                frozen.checksums.extend(part.iter().map(|&id| (id, st.group_mut(id).checksums.take_frozen(g))));
            }
            self.breathe(part.len()).await;
        }
        frozen.captured = true;
    }

    /// Gives others a turn after a whole slice of work.
    async fn breathe(&self, done: usize) {
        if done >= SLICE {
            self.rt().yield_now().await;
        }
    }

    /// Sends the changed nodes of all trees; returns the new roots, in the order of `frozen.volumes`, then of `frozen.checksums`.
    async fn write_nodes(&self, frozen: &mut Frozen, writes: &mut Writes) -> Result<Vec<Option<RootPtr>>> {
        let trees: Vec<Tree> =
            frozen.volumes.iter().map(|v| v.3.clone()).chain(frozen.checksums.iter().map(|c| c.1.clone())).collect();
        let mut roots = Vec::with_capacity(trees.len());
        let mut writer = NodeWriter::new(self, writes);
        for tree in trees {
            let mut out = WriteOut::new(&tree, frozen.generation());
            loop {
                match writer.slice(&mut out, &mut frozen.node_blocks).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(e) => {
                        writer.finish(&mut frozen.node_blocks).await;
                        return Err(e);
                    }
                }
                self.rt().yield_now().await;
            }
            roots.push(out.root());
        }
        writer.finish(&mut frozen.node_blocks).await;
        Ok(roots)
    }

    /// Enters allocations and frees into the durable bitmaps: all of them, or none.
    async fn apply(&self, frozen: &mut Frozen) -> Result<()> {
        if frozen.applied {
            return Ok(());
        }
        self.gather_frees(frozen).await;
        let mut groups: BTreeSet<GroupId> = BTreeSet::new();
        let geometry = self.state().geometry;
        for (part, _) in frozen.changes() {
            groups.extend(part.iter().map(|r| geometry.split(r.addr).0));
            self.breathe(part.len()).await;
        }
        for &id in &groups {
            self.load_maps(id).await?;
        }
        let mut planned = BTreeMap::new();
        for (part, set) in frozen.changes() {
            for &run in part {
                let mut st = self.state_mut();
                plan(&st, &mut planned, run, set).map_err(|e| st.standing.end(e))?;
            }
            self.breathe(part.len()).await;
        }
        while !planned.is_empty() {
            let left = planned.len();
            {
                let mut st = self.state_mut();
                for _ in 0..SLICE {
                    let Some((place, bits)) = planned.pop_first() else { break };
                    frozen.before.insert(place, install(&mut st, place, &bits));
                }
            }
            self.breathe(left).await;
        }
        frozen.touched_groups = groups;
        frozen.applied = true;
        Ok(())
    }

    /// Gathers what is freed: data, and the blocks of replaced nodes.
    async fn gather_frees(&self, frozen: &mut Frozen) {
        let blocks = self.state().geometry.group_blocks;
        let txn = &mut frozen.txn;
        let own = (std::mem::take(&mut txn.frees), txn.nodes.take_freed());
        let rounds = txn.rounds.iter_mut().map(|r| (std::mem::take(&mut r.frees), std::mem::take(&mut r.freed_nodes)));
        for (mut frees, nodes) in std::iter::once(own).chain(rounds) {
            let mut nodes = nodes.resolve();
            loop {
                let mut done = 0;
                {
                    let mut st = self.state_mut();
                    for NodePtr { addr, .. } in nodes.by_ref().take(RUNS) {
                        st.store.forget(addr);
                        push_run(&mut frees, Run { addr, len: 1 }, blocks);
                        done += 1;
                    }
                }
                if done < RUNS {
                    break;
                }
                self.rt().yield_now().await;
            }
            if !frees.is_empty() {
                frozen.frees.push(frees);
            }
        }
    }

    /// Puts the new roots into the records that the table pages will say.
    fn enter_roots(&self, frozen: &mut Frozen, roots: &[Option<RootPtr>]) {
        let mut st = self.state_mut();
        let (volume_roots, checksum_roots) = roots.split_at(frozen.volumes.len());
        for ((id, record, gone, _), root) in frozen.volumes.iter().zip(volume_roots) {
            let Some((place, cancelled)) = st.volumes.get(id).map(|v| (v.place, v.gone && root.is_none())) else {
                continue;
            };
            // A volume whose creation was reported as failed, in the first try of this commit, must not come to be by the second.
            st.places[place as usize] =
                (!gone && !cancelled).then(|| VolumeRecord { mapping: *root, ..record.clone() });
            frozen.table_pages.insert(place / format::page::VOLUMES_PER_PAGE);
        }
        for ((id, _), root) in frozen.checksums.iter().zip(checksum_roots) {
            st.group_mut(*id).record.checksums = *root;
            frozen.touched_groups.insert(*id);
        }
    }

    /// Decides which pages have to be written.
    async fn plan_pages(&self, frozen: &mut Frozen) {
        let (mut written, mut skipped) = (0, 0);
        while !frozen.before.is_empty() {
            let pages = frozen.before.len();
            {
                let mut st = self.state_mut();
                for _ in 0..SLICE {
                    let Some(((id, page), before)) = frozen.before.pop_first() else { break };
                    if st.note_page(id, page, &before, frozen.txn.generation()) {
                        written += 1;
                        if st.group(id).record.bitmap_generations[page as usize] == frozen.txn.generation() {
                            frozen.bitmap_pages.push((id, page));
                        }
                        frozen.table_pages.insert(st.page_of_group(id));
                    } else {
                        skipped += 1;
                    }
                }
            }
            self.breathe(pages).await;
        }
        let mut st = self.state_mut();
        for &id in frozen.txn.groups.iter().chain(frozen.checksums.iter().map(|c| &c.0)) {
            frozen.table_pages.insert(st.page_of_group(id));
        }
        for id in std::mem::take(&mut frozen.touched_groups) {
            if frozen.table_pages.contains(&st.page_of_group(id)) { written += 1 } else { skipped += 1 }
        }
        let forced = std::mem::take(&mut st.forced_pages);
        frozen.table_pages.extend(forced);
        let mut m = self.metrics_mut();
        m.group_updates_written += written;
        m.group_updates_skipped += skipped;
    }

    /// Sends the planned pages, each into the slot that is not the committed one, to every device.
    async fn write_pages(&self, frozen: &Frozen, writes: &mut Writes) {
        let generation = frozen.generation();
        for part in frozen.bitmap_pages.chunks(SLICE) {
            let blocks = {
                let st = self.state();
                part.iter()
                    .filter_map(|&(id, page)| st.encode_bitmap_page(id, page, generation, self.rt().bufs()))
                    .collect()
            };
            self.write_everywhere(blocks, writes).await;
        }
        let table_pages: Vec<u32> = frozen.table_pages.iter().copied().collect();
        for part in table_pages.chunks(SLICE) {
            let blocks = {
                let st = self.state();
                part.iter().map(|&page| st.encode_table_page(page, generation, self.rt().bufs())).collect()
            };
            self.write_everywhere(blocks, writes).await;
        }
    }

    /// Sends blocks to the same offsets of all live devices.
    async fn write_everywhere(&self, blocks: Vec<(u64, Buf)>, writes: &mut Writes) {
        let devices = self.state().live_devices();
        for (offset, block) in blocks {
            let places: Vec<_> = devices.iter().map(|&d| (d, offset)).collect();
            let (pool, data) = (self.clone(), SliceList::from_iter([block.freeze()]));
            writes.add(self.rt().spawn(async move { pool.write_places(&places, data, Class::Commit).await })).await;
        }
    }

    fn next_digest(&self, frozen: &Frozen) -> u64 {
        let st = self.state();
        frozen.table_pages.iter().fold(st.tables_digest, |digest, &page| {
            let old = page_digest(page, st.table_pages[page as usize].generation);
            digest.wrapping_sub(old).wrapping_add(page_digest(page, frozen.generation()))
        })
    }

    /// The commit is durable: lets go of what it held.
    fn complete(&self, _: Durable, frozen: Frozen) {
        let mut st = self.state_mut();
        let generation = frozen.generation();
        let digest = frozen.table_pages.iter().fold(st.tables_digest, |digest, &page| {
            let old = page_digest(page, st.table_pages[page as usize].generation);
            digest.wrapping_sub(old).wrapping_add(page_digest(page, generation))
        });
        st.tables_digest = digest;
        for &page in &frozen.table_pages {
            let p = &mut st.table_pages[page as usize];
            p.generation = generation;
            p.slot = 1 - p.slot;
        }
        for &(id, page) in &frozen.bitmap_pages {
            if let Some(maps) = &mut st.group_mut(id).maps {
                let slot = &mut maps.slots[page as usize];
                *slot = 1 - *slot;
            }
        }
        for (id, _, gone, tree) in &frozen.volumes {
            if *gone {
                if let Some(v) = st.volumes.remove(id) {
                    st.held.remove(&v);
                }
                continue;
            }
            if let Some(v) = st.volumes.get_mut(id) {
                v.creating = false;
                v.forget_frozen();
                v.mapping.tree.settle(tree);
            }
        }
        for (id, tree) in &frozen.checksums {
            let g = st.group_mut(*id);
            g.checksums.forget_frozen();
            g.checksums.tree.settle(tree);
        }
        st.committed = generation;
        st.known = generation;
        if let Some(cut) = st.publishing.take() {
            st.published = cut;
        }
        st.committing = None;
        st.committing_nodes = 0;
        // They become free one after another, so that the first one's pin holds them all. Without any it stays: who reads now is waited for by the next.
        for frees in frozen.frees {
            let pin = std::mem::take(&mut st.pin);
            st.limbo.push_back((pin, frees));
        }
    }

    /// What can be done after a commit, in slices: free what it freed, give up empty groups, drop idle bitmaps.
    async fn tidy_up(&self) {
        while self.state_mut().drain_limbo(4 * SLICE) {
            self.rt().yield_now().await;
        }
        let mut left = self.state().loaded.len();
        loop {
            {
                let mut st = self.state_mut();
                st.dissolve_empty(SLICE);
                left = left.saturating_sub(SLICE);
                if !st.unload_idle(self.settings().loaded_groups, SLICE) || left == 0 {
                    return;
                }
            }
            self.rt().yield_now().await;
        }
    }
}

/// A bitmap page of a group.
type Place = (GroupId, u32);

const WORDS_PER_PAGE: usize = BITS_PER_PAGE as usize / 64;

fn maps_of(st: &State, id: GroupId) -> &Maps {
    match &st.group(id).maps {
        Some(maps) => maps,
        None => unreachable!("{id:?}: its maps were loaded for this commit"),
    }
}

/// Sets or clears a run in what the bitmap pages are to be; the bitmaps themselves stay as they are.
fn plan(st: &State, planned: &mut BTreeMap<Place, Bitmap>, run: Run, set: bool) -> Result<()> {
    let (id, block) = st.geometry.split(run.addr);
    let (mut at, end, mut changed) = (block, block + run.len, 0);
    while at < end {
        let page = at / BITS_PER_PAGE;
        let (first, upto) = (page * BITS_PER_PAGE, end.min((page + 1) * BITS_PER_PAGE));
        let bits = planned.entry((id, page)).or_insert_with(|| {
            let mut bits = Bitmap::new(st.geometry.bits_of_page(page) as usize);
            bits.set_words(0, page_words(maps_of(st, id), page));
            bits
        });
        changed += bits.assign((at - first) as usize, (upto - at) as usize, set);
        at = upto;
    }
    if changed == run.len as usize {
        return Ok(());
    }
    // What is allocated was free by our own bitmap; what is freed stood in a tree from a device.
    assert!(!set, "{run:?} was allocated already");
    let text = format!(
        "blocks from {} on are referred to, and free by the bitmap: the pool is damaged; stop forebay and run forebay check",
        run.addr
    );
    Err(PoolError::new(ErrorKind::Damaged, text))
}

/// Makes a planned page what it is to be; returns what it was.
fn install(st: &mut State, (id, page): Place, bits: &Bitmap) -> Vec<u64> {
    let before = page_words(maps_of(st, id), page).to_vec();
    if let Some(maps) = &mut st.group_mut(id).maps {
        maps.durable.set_words(page as usize * WORDS_PER_PAGE, bits.words());
    }
    before
}

fn page_words(maps: &Maps, page: u32) -> &[u64] {
    let words = &maps.durable.words()[page as usize * WORDS_PER_PAGE..];
    &words[..words.len().min(WORDS_PER_PAGE)]
}
