//! Loading what is not resident: nodes of trees, bitmaps of groups.

use std::collections::VecDeque;
use std::ops::DerefMut;
use std::rc::Rc;
use std::time::Duration;

use base::{ErrorKind, Generation, GroupId, Result, Slice, StorageError};
use btree::{Fault, Loader, NodeError, Stop, Store};
use format::page::{PageId, PageKind};
use format::tree::{group_of_tree, tree_name};
use queue::Class;
use rt::sync::Shared;
use rt::{JoinHandle, Reason, Rt};

use crate::core::Core;
use crate::error::Step;
use crate::space::{Maps, Pin, Run};
use crate::state::State;
use crate::transfer::copies::CopyReader;
use crate::transfer::writer_watch::WriterWatch;

/// Reads of nodes under way at once, of those that are read ahead: few enough for other requests to
/// get their turn at the device.
const AT_ONCE: usize = 256;

/// A block group is left alone for so long of whose checksums a node cannot be read.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// Why a step failed.
pub(crate) struct EntryError {
    pub why: StorageError,
    /// The node that could not be read.
    pub node: Option<Fault>,
}

impl From<EntryError> for StorageError {
    fn from(failed: EntryError) -> StorageError {
        failed.why
    }
}

/// The loader of the pool's nodes, by requests of a class.
struct Nodes<'p>(&'p NodeLoader, Class);

impl Loader for Nodes<'_> {
    type State = State;
    type Error = StorageError;
    type Pin = Pin;

    fn state(&mut self) -> impl DerefMut<Target = State> {
        self.0.core.state_mut()
    }

    fn store(st: &mut State) -> &mut Store {
        st.forest.store_mut()
    }

    fn pin(st: &State, fault: &Fault) -> Pin {
        st.space.limbo().pin_blocks([node(fault)], &st.space.limbo().pin())
    }

    const REASON: Reason = Reason::Tree;

    fn rt(&self) -> Rt {
        self.0.core.rt().clone()
    }

    fn gives_way(&self) -> bool {
        self.1.is_background()
    }

    async fn read(&mut self, fault: &Fault, pin: &Pin) -> Result<Slice> {
        if !self.0.core.state().space.geometry().contains(fault.ptr.addr) {
            return Err(damaged(fault, "its address is outside of the pool"));
        }
        self.0.copies.read_verified(fault.ptr.addr, &[fault.ptr.crc], self.1, pin).await
    }

    fn refused(fault: &Fault, why: NodeError) -> StorageError {
        damaged(fault, why)
    }
}

/// Brings nodes of trees and bitmaps of groups into memory.
pub(crate) struct NodeLoader {
    core: Core,
    watch: Rc<WriterWatch>,
    copies: Rc<CopyReader>,
}

impl NodeLoader {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        watch: &Rc<WriterWatch>,
        copies: &Rc<CopyReader>,
    ) -> Rc<NodeLoader> {
        Rc::new(NodeLoader { core: core.clone(), watch: watch.clone(), copies: copies.clone() })
    }

    /// Runs a synchronous step over resident nodes until it needs no more.
    pub(crate) async fn resident<T>(
        &self,
        class: Class,
        step: impl FnMut(&mut State) -> Step<T>,
    ) -> Result<T> {
        btree::resident(&mut Nodes(self, class), step).await
    }

    /// As [`NodeLoader::resident`]. An error names the node that could not be read, if that was it.
    /// A node of which it is `known` why it cannot be read is not asked for.
    pub(crate) async fn resident_or_lost<T>(
        &self,
        class: Class,
        known: impl Fn(&Fault) -> Option<StorageError>,
        mut step: impl FnMut(&mut State) -> Step<T>,
    ) -> std::result::Result<T, EntryError> {
        let mut node = None;
        let noting = |st: &mut State| match step(st) {
            Err(Stop::Fault(fault)) => {
                node = Some(fault);
                Err(known(&fault).map_or(Stop::Fault(fault), Stop::Error))
            }
            outcome => {
                node = None;
                outcome
            }
        };
        let outcome = self.resident(class, noting).await;
        outcome.map_err(|why| EntryError { why, node })
    }

    /// Blocks could not be entered into the trees. True if they can be elsewhere: a node of the
    /// checksums of their block group is lost, from which nothing is allocated for a while.
    pub(crate) fn goes_elsewhere(&self, failed: &EntryError) -> bool {
        let group = failed.node.and_then(|node| group_of_tree(node.tree));
        let Some(group) = group.filter(|_| self.core.permit().is_ok()) else { return false };
        let until = self.core.now().after(LEFT_ALONE);
        if self.core.state_mut().space.supply_mut().lose_sums(group, until) {
            tracing::error!(
                group = group.0,
                "cannot read the checksums: no blocks are allocated from this block group for now: \
                 {}",
                failed.why
            );
        }
        true
    }

    /// Pins each of these nodes by itself. `pin` was taken when they were looked up, or before.
    pub(crate) fn pin_nodes(
        &self,
        faults: impl IntoIterator<Item = Fault>,
        pin: Pin,
    ) -> Vec<(Fault, Pin)> {
        let st = self.core.state();
        let one = |fault: Fault| (fault, st.space.limbo().pin_blocks([node(&fault)], &pin));
        faults.into_iter().map(one).collect()
    }

    /// Brings nodes into memory before steps need them, many at once. They should come in the order
    /// of their addresses: then a disk reads them in one sweep. Each has a pin
    /// ([`NodeLoader::pin_nodes`]), as this may take long. Where they are `held`, and a write-back
    /// pass is open, the store keeps them from eviction. Returns those that could not be read, and
    /// why; the step that needs one of them will tell.
    pub(crate) async fn load_nodes(
        self: &Rc<Self>,
        class: Class,
        nodes: Vec<(Fault, Pin)>,
        held: bool,
    ) -> Vec<(Fault, StorageError)> {
        let (mut tasks, mut lost) = (VecDeque::new(), Vec::new());
        for (fault, pin) in nodes {
            if tasks.len() >= AT_ONCE
                && let Some((fault, task)) = tasks.pop_front()
            {
                lost.extend(loaded(task).await.err().map(|why| (fault, why)));
            }
            let this = self.clone();
            let load = async move { this.load_node(class, &fault, &pin, held).await };
            tasks.push_back((fault, self.core.rt().spawn(load)));
        }
        for (fault, task) in tasks {
            lost.extend(loaded(task).await.err().map(|why| (fault, why)));
        }
        lost
    }

    async fn load_node(&self, class: Class, fault: &Fault, pin: &Pin, held: bool) -> Result<()> {
        let is_there = || {
            let mut st = self.core.state_mut();
            let hold = held && st.txns.pass().is_some();
            let store = st.forest.store_mut();
            if hold { store.hold(fault) } else { store.has(fault) }
        };
        if is_there() {
            return Ok(());
        }
        let read = btree::load(&mut Nodes(self, class), fault, pin).await;
        is_there();
        read
    }

    /// Brings a group's bitmaps into memory. Tasks that need the bitmaps while they are read share
    /// that read and its outcome. If each tried again by itself, a commit that retries could always
    /// be first, and other tasks would wait for ever.
    pub(crate) async fn load_maps(&self, id: GroupId) -> Result<()> {
        loop {
            let running =
                self.core.loading_maps().get(&id).filter(|load| load.is_running()).cloned();
            match running {
                Some(load) => {
                    if let Some(outcome) = self.core.rt().waits(Reason::Tree, load.wait()).await {
                        return outcome;
                    }
                }
                None if self.core.state().space.bitmaps().has(id) => return Ok(()),
                None => break,
            }
        }
        let (load, worker) = Shared::begin();
        self.core.loading_maps().insert(id, load);
        let outcome = self.core.rt().waits(Reason::Tree, self.read_maps(id)).await;
        let outcome = self.core.state_mut().space.enter_maps(id, outcome);
        self.core.loading_maps().remove(&id);
        worker.end(outcome.clone());
        outcome
    }

    /// As [`NodeLoader::load_maps`], to take blocks from the group: if they cannot be read, blocks
    /// of other groups are taken from now on.
    pub(crate) async fn load_maps_to_take(&self, id: GroupId) {
        if let Err(e) = self.load_maps(id).await {
            tracing::error!(
                group = id.0,
                "cannot read the bitmap: no more blocks are allocated from this block group: {e}"
            );
        }
    }

    /// Reads a group's bitmap pages: of each, the slot with exactly the generation that the group's
    /// record names.
    async fn read_maps(&self, id: GroupId) -> Result<Maps> {
        let (geometry, uuid, generations) = {
            let st = self.core.state();
            (st.space.geometry(), st.identity.uuid, st.space.groups().bitmap_generations(id))
        };
        let bits = geometry.group_blocks as usize;
        let mut durable = base::Bitmap::new(bits);
        let mut slots = [0; format::page::MAX_BITMAP_PAGES];
        let words_per_page = format::page::BITS_PER_PAGE as usize / 64;
        for i in 0..geometry.pages_per_group() {
            let want = generations[i as usize];
            if want == Generation(0) {
                continue;
            }
            let page = PageId {
                pool_uuid: uuid,
                kind: PageKind::Bitmap,
                page: geometry.bitmap_page(id, i),
                slot: 0,
            };
            let (slot, words) =
                self.read_bitmap_page(&page, want, geometry.bits_of_page(i) as usize).await?;
            slots[i as usize] = slot;
            durable.set_words(i as usize * words_per_page, &words);
        }
        Ok(Maps { busy: durable.clone(), durable, slots })
    }

    async fn read_bitmap_page(
        &self,
        page: &PageId,
        want: Generation,
        bits: usize,
    ) -> Result<(u8, Vec<u64>)> {
        let offset = self.core.state().space.geometry().page_offset(page.page, 0);
        let devices = self.core.state().devices.count();
        let (mut found, mut bad) = (None, Vec::new());
        for d in 0..devices {
            let Some(disk) = self.core.state().devices.live(d).cloned() else { continue };
            let slots = disk.read_bitmap_slots(page, offset, want, bits).await;
            let mut st = self.core.state_mut();
            for (at, e) in slots.errors {
                st.devices.note_read_error(d, at, e, self.core.now());
            }
            found = slots.found;
            if found.is_some() {
                break;
            }
            st.note_bad_block(d, offset, self.core.now());
            bad.push(d);
        }
        let Some((slot, words, block)) = found else {
            let what = format!("bitmap page {}: no device has its generation {want}", page.page);
            return Err(StorageError::new(ErrorKind::Damaged, what));
        };
        // The committed version is put where it belongs on the devices that lost it. The page is
        // not written otherwise meanwhile, because a commit loads the maps first.
        for d in bad {
            let at = offset + u64::from(slot) * base::BLOCK_U64;
            let permit = self.watch.permit_to_write().await;
            let (Some(device), Ok(permit)) = (self.core.disk(d), permit) else { continue };
            let data = base::SliceList::from_iter([block.clone()]);
            if device.write(permit, Class::Commit, at, data).await.is_ok() {
                self.core.state_mut().devices.note_healed(d);
            }
        }
        Ok((slot, words))
    }
}

/// The block of a node.
fn node(fault: &Fault) -> Run {
    Run { addr: fault.ptr.addr, len: 1 }
}

async fn loaded(task: JoinHandle<Result<()>>) -> Result<()> {
    task.await.unwrap_or_else(|| Err(StorageError::ended()))
}

fn damaged(fault: &Fault, why: impl std::fmt::Display) -> StorageError {
    StorageError::new(
        ErrorKind::Damaged,
        format!(
            "{}: the node at block {}: {why}; run forebay check",
            tree_name(fault.tree),
            fault.ptr.addr
        ),
    )
}
