//! One volume: its blocks as far as they are known to hold anything, changes under way, readers.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use base::{BLOCK_U64, SECTOR};
use pool::CacheMode;

use super::block::{Block, Change, FLYING, SECTORS, SeenSectors, Value, Verdict, View, WHOLE};
use crate::content::{SectorContent, identify};

/// A change of a range of sectors that is under way.
#[derive(Clone, Debug)]
pub(crate) struct ChangingRange {
    pub first: u64,
    /// Behind the last sector.
    pub end: u64,
    change: Change,
    /// Blocks that lie only partly inside stay as they are.
    whole_only: bool,
}

/// The content that a read saw and that cannot be.
#[derive(Debug)]
pub(crate) struct Mismatch {
    pub block: u64,
    pub text: String,
}

/// A resize that ended with an error.
#[derive(Clone, Copy)]
pub(crate) struct DoubtfulResize {
    /// The size that the volume does not have now, and may turn out to have.
    pub size: u64,
    /// The number of its change.
    pub op: u64,
    /// The volume has the size that was asked for: it has happened, unless a crash undoes it.
    pub done: bool,
}

/// The state of a change in its life: see [`Change`].
#[derive(Clone, Copy)]
pub(crate) struct End {
    pub tick: u64,
    pub ok: bool,
    pub durable: bool,
}

/// Blocks by their number; those that hold nothing and may not are left out.
pub(crate) type Blocks = BTreeMap<u64, Block>;

pub(crate) struct Volume {
    /// The number in its content: of this volume alone, though names come again.
    pub id: u32,
    pub sector: u32,
    pub size: u64,
    /// A resize to this size, with the number of its change, is under way, or its outcome unknown.
    pub resizing: Option<(u64, u64)>,
    /// The resizes that failed and may have left another size, to be found after the next open.
    pub also: Vec<DoubtfulResize>,
    /// The least size that it may have had after each resize that has begun or ended so far.
    least: Vec<u64>,
    /// Blocks behind the end that a crash may bring back: a shrink gives them up after its commit.
    /// They are never seen, but take space.
    behind: u64,
    /// When they were given up: the next flush makes it last.
    given_up: Option<u64>,
    /// A deletion was asked for.
    pub dying: bool,
    /// The mode in which the volume uses a cache.
    pub mode: CacheMode,
    /// A switch to this mode is under way, or its outcome unknown.
    pub switching: Option<CacheMode>,
    /// Modes that a switch which failed may have left, to be found after the next open.
    pub also_modes: Vec<CacheMode>,
    /// A switch failed: what it holds without the cache is not known, until one to another mode
    /// than `writeback` is done.
    pub mode_open: bool,
    /// A crash cut a switch short by which it ceases to write back: without the cache it is as a
    /// cut has it, or newer, until a pass is published.
    pub beyond_cut: bool,
    /// Shared with the images of cuts, until they change.
    blocks: Rc<Blocks>,
    /// Sizes that it was cut to, and when.
    cuts: Vec<(u64, u64)>,
    unsettled: BTreeSet<u64>,
    ranges: BTreeMap<u64, ChangingRange>,
    /// Reads under way: their number and the tick at which they began.
    readers: BTreeMap<u64, u64>,
}

impl Volume {
    pub fn new(id: u32, size: u64, sector: u32) -> Volume {
        Volume {
            id,
            sector,
            size,
            resizing: None,
            also: Vec::new(),
            least: Vec::new(),
            behind: 0,
            given_up: None,
            dying: false,
            mode: CacheMode::default(),
            switching: None,
            also_modes: Vec::new(),
            mode_open: false,
            beyond_cut: false,
            blocks: Rc::default(),
            cuts: Vec::new(),
            unsettled: BTreeSet::new(),
            ranges: BTreeMap::new(),
            readers: BTreeMap::new(),
        }
    }

    /// The least and the most size that it may have now.
    pub fn sizes(&self) -> (u64, u64) {
        let other = self.resizing.map_or(self.size, |r| r.0);
        (self.size.min(other), self.size.max(other))
    }

    /// A resize has begun or ended.
    pub fn note_resize(&mut self) {
        self.least.push(self.sizes().0);
    }

    /// Resizes so far, begun or ended.
    pub fn resizes(&self) -> usize {
        self.least.len()
    }

    /// The least size that it may have, or may have had since so many resizes.
    pub fn least_size_since(&self, resizes: usize) -> u64 {
        let since = self.least.get(resizes..).unwrap_or_default();
        since.iter().fold(self.sizes().0, |least, &size| least.min(size))
    }

    /// Zeros up to the end of the volume are under way, and so to the end of its last block,
    /// wherever that is.
    pub fn tail_busy(&self) -> bool {
        self.ranges.values().any(|r| {
            !matches!(r.change.value, Value::Write(_)) && r.end >= self.size / SECTOR as u64
        })
    }

    /// Something under way gives up blocks of those that change `op` writes, or a resize is under
    /// way, or a switch, or its end.
    pub fn is_giving_up(&self, op: u64) -> bool {
        let Some(own) = self.ranges.get(&op) else { return true };
        let overlaps = |r: &ChangingRange| {
            let (from, to) = (own.first / SECTORS, own.end.div_ceil(SECTORS));
            r.first < to * SECTORS && from * SECTORS < r.end
        };
        let mut others =
            self.ranges.values().filter(|r| !matches!(r.change.value, Value::Write(_)));
        self.dying || self.resizing.is_some() || self.switching.is_some() || others.any(overlaps)
    }

    /// Whether it may be in this mode.
    pub fn may_be_in(&self, mode: CacheMode) -> bool {
        mode == self.mode || Some(mode) == self.switching || self.also_modes.contains(&mode)
    }

    /// For sure it does not write back.
    pub fn is_direct(&self) -> bool {
        self.is_in_one_mode() && self.mode != CacheMode::WriteBack
    }

    /// It is known in which mode it is, and that stays so.
    pub fn is_in_one_mode(&self) -> bool {
        self.switching.is_none() && self.also_modes.is_empty() && !self.mode_open
    }

    fn oldest_reader(&self) -> u64 {
        self.readers.values().min().copied().unwrap_or(u64::MAX)
    }

    /// A change of these sectors begins.
    pub fn begin(
        &mut self,
        op: u64,
        sectors: std::ops::Range<u64>,
        value: Value,
        whole_only: bool,
        tick: u64,
        era: u32,
    ) {
        let std::ops::Range { start: first, end } = sectors;
        let change = Change {
            op,
            mask: WHOLE,
            value,
            start: tick,
            end: FLYING,
            ok: false,
            durable: false,
            era,
        };
        let range = ChangingRange { first, end, change, whole_only };
        if value != Value::Hole {
            (first / SECTORS..end.div_ceil(SECTORS)).for_each(|number| self.ensure(number));
        } else if !whole_only {
            // Zeros in part of a block are written, also where there was nothing.
            [first, end]
                .into_iter()
                .filter(|s| s % SECTORS != 0)
                .for_each(|s| self.ensure(s / SECTORS));
        }
        let touched = first / SECTORS..end.div_ceil(SECTORS);
        for (number, block) in Rc::make_mut(&mut self.blocks).range_mut(touched) {
            if let Some(change) = range.on(*number) {
                block.changes.push(change);
                self.unsettled.insert(*number);
            }
        }
        self.ranges.insert(op, range);
    }

    /// The block is to be kept from now on: with all changes that may still come.
    fn ensure(&mut self, number: u64) {
        let ranges = &self.ranges;
        let unsettled = &mut self.unsettled;
        if self.blocks.contains_key(&number) {
            return;
        }
        Rc::make_mut(&mut self.blocks).entry(number).or_insert_with(|| {
            let changes: Vec<_> = ranges.values().filter_map(|r| r.on(number)).collect();
            if !changes.is_empty() {
                unsettled.insert(number);
            }
            Block { changes, ..Block::new() }
        });
    }

    /// The change is over. Without `how` it is not known, and it may still happen.
    pub fn end(&mut self, op: u64, how: End) {
        let Some(range) = self.ranges.remove(&op) else { return };
        let oldest = self.oldest_reader();
        let touched = range.first / SECTORS..range.end.div_ceil(SECTORS);
        let mut holes = Vec::new();
        for (number, block) in Rc::make_mut(&mut self.blocks).range_mut(touched) {
            for c in block.changes.iter_mut().filter(|c| c.op == op) {
                (c.end, c.ok, c.durable) = (how.tick, how.ok, how.durable);
            }
            if how.durable {
                block.settle(oldest);
                if block.is_hole() {
                    holes.push(*number);
                }
            }
        }
        self.forget_holes(&holes);
    }

    fn forget_holes(&mut self, holes: &[u64]) {
        // While a range is under way, a block that is forgotten and then written again could miss
        // its change; so could one that reads under way may still see.
        if self.ranges.is_empty() && self.readers.is_empty() {
            for number in holes {
                Rc::make_mut(&mut self.blocks).remove(number);
                self.unsettled.remove(number);
            }
        }
    }

    /// A flush that began at `from` is done: what had completed by then is durable.
    pub fn flushed(&mut self, from: u64, era: u32) {
        if self.given_up.is_some_and(|tick| tick < from) {
            self.behind = 0;
        }
        let oldest = self.oldest_reader();
        let mut settled = Vec::new();
        for number in &self.unsettled {
            let Some(block) = Rc::make_mut(&mut self.blocks).get_mut(number) else { continue };
            block
                .changes
                .iter_mut()
                .filter(|c| c.era == era && c.end < from)
                .for_each(|c| c.durable = true);
            block.settle(oldest);
            if block.changes.is_empty() {
                settled.push(*number);
            }
        }
        settled.iter().for_each(|n| {
            self.unsettled.remove(n);
        });
        let holes: Vec<_> = settled
            .into_iter()
            .filter(|n| self.blocks.get(n).is_some_and(Block::is_hole))
            .collect();
        self.forget_holes(&holes);
    }

    /// The boot has ended: nothing is under way any more.
    pub fn stop(&mut self, tick: u64) {
        self.readers.clear();
        let ops: Vec<u64> = self.ranges.keys().copied().collect();
        ops.into_iter().for_each(|op| self.end(op, End { tick, ok: false, durable: false }));
    }

    /// A resize is done.
    pub fn resized(&mut self, size: u64, tick: u64) {
        // Failed resizes that had happened are durable now: this resize was made of what they had
        // left.
        for doubted in std::mem::take(&mut self.also).into_iter().filter(|d| d.done) {
            let all = Rc::make_mut(&mut self.blocks).values_mut().flat_map(|b| &mut b.changes);
            all.filter(|c| c.op == doubted.op).for_each(|c| (c.ok, c.durable) = (true, true));
        }
        if size < self.size {
            let end = (size / SECTOR as u64).div_ceil(SECTORS);
            self.behind += self.blocks.range(end..).filter(|(_, b)| b.takes().1).count() as u64;
            self.given_up = Some(tick);
            self.cuts.push((tick, size));
        } else {
            self.behind = 0;
        }
        self.size = size;
    }

    /// A resize has not happened. Of the block that it cut in two this is not known: what was
    /// written to its beginning since may have brought zeros for the rest with it.
    pub fn not_resized(&mut self, op: u64) {
        for block in Rc::make_mut(&mut self.blocks).values_mut() {
            block.changes.retain(|c| c.op != op || c.mask != u8::MAX);
            let cut = block.changes.iter_mut().filter(|c| c.op == op);
            cut.for_each(|c| (c.ok, c.durable) = (false, false));
        }
    }

    /// The end of the volume is at `size`, and what was behind it is gone for good.
    pub fn truncate(&mut self, size: u64, tick: u64) {
        self.cuts.push((tick, size));
        let sectors = size / SECTOR as u64;
        let behind = Rc::make_mut(&mut self.blocks).split_off(&sectors.div_ceil(SECTORS));
        behind.keys().for_each(|n| {
            self.unsettled.remove(n);
        });
        self.behind += behind.len() as u64;
        self.given_up = None;
        // The shrink has written zeros behind it.
        clear_behind(Rc::make_mut(&mut self.blocks), sectors);
    }

    /// Returns what every block may hold now.
    pub fn image(&self) -> Rc<Blocks> {
        self.blocks.clone()
    }

    /// No read will ask for what was before `tick`.
    pub fn forget_cuts_before(&mut self, tick: u64) {
        self.cuts.retain(|c| c.0 >= tick);
    }

    /// The volume holds what it held at `tick`, in boot `era`: all that was done by then, what was
    /// under way or not, and nothing that came later. What it was shrunk by since is gone.
    pub fn set_back(&mut self, image: Option<&Blocks>, tick: u64, era: u32) {
        let mut blocks = image.cloned().unwrap_or_default();
        let least = self.cuts.iter().filter(|c| c.0 >= tick).map(|c| c.1).min().unwrap_or(u64::MAX);
        blocks.split_off(&least.div_ceil(BLOCK_U64));
        // The end is where it is. What the image has behind it, in its last block, is not seen, and
        // a volume that grows clears it.
        clear_behind(&mut blocks, self.size / SECTOR as u64);
        for c in blocks.values_mut().flat_map(|b| &mut b.changes) {
            if c.end == FLYING {
                (c.end, c.ok) = (tick, false);
            } else if c.ok && c.era == era {
                c.durable = true;
            }
        }
        self.unsettled =
            blocks.iter().filter(|(_, b)| !b.changes.is_empty()).map(|(n, _)| *n).collect();
        self.blocks = Rc::new(blocks);
    }

    pub fn begin_read(&mut self, op: u64, tick: u64) {
        self.readers.insert(op, tick);
    }

    /// The read of `data`, from byte `offset` on, is over: judges it. The parts of sectors at its
    /// ends are not looked at. Returns how many blocks could not be judged.
    pub fn end_read(
        &mut self,
        op: u64,
        offset: u64,
        data: &[u8],
        era: u32,
    ) -> Result<u64, Mismatch> {
        let Some(from) = self.readers.remove(&op) else { return Ok(0) };
        let mut too_hard = 0;
        for (number, seen) in blocks_seen(self.id, offset, data) {
            too_hard += u64::from(self.see(number, &seen, View { era, from })?);
        }
        Ok(too_hard)
    }

    /// Judges what was seen of one block; true if it was too hard.
    fn see(&mut self, number: u64, seen: &SeenSectors, view: View) -> Result<bool, Mismatch> {
        let oldest = self.oldest_reader();
        let whole = seen.iter().all(Option::is_some);
        let Some(block) = self.blocks.get(&number) else {
            let zero = seen.iter().flatten().all(|f| *f == SectorContent::Zero);
            let text =
                || format!("{}\nexpected: zeros, it was never written or given up", describe(seen));
            return if zero { Ok(false) } else { Err(Mismatch { block: number, text: text() }) };
        };
        match block.allows(seen, view) {
            Verdict::Impossible => {
                let text = format!("{}\nexpected: {}", describe(seen), explain(block, view));
                return Err(Mismatch { block: number, text });
            }
            Verdict::TooHard => return Ok(true),
            Verdict::Explained => {}
        }
        if whole && !block.changes.is_empty() {
            let Some(block) = Rc::make_mut(&mut self.blocks).get_mut(&number) else {
                return Ok(false);
            };
            block.pin(seen, view, oldest);
            if block.changes.is_empty() {
                self.unsettled.remove(&number);
            }
        }
        Ok(false)
    }

    /// Blocks that hold something or may: for reading them all where the volume is too large for
    /// it.
    pub fn known_blocks(&self) -> Vec<u64> {
        self.blocks.keys().copied().collect()
    }

    /// Whether a block takes space in the pool: for sure, perhaps.
    pub fn takes(&self, number: u64) -> (bool, bool) {
        self.blocks.get(&number).map_or((false, false), Block::takes)
    }

    /// The least and the most number of bytes that it may take in the pool, when nothing is under
    /// way.
    pub fn allocated(&self) -> (u64, u64) {
        let (least, most) = self
            .blocks
            .values()
            .map(Block::takes)
            .fold((0, 0), |(least, most), (sure, perhaps)| {
                (least + u64::from(sure), most + u64::from(perhaps))
            });
        (least * BLOCK_U64, (most + self.behind) * BLOCK_U64)
    }
}

impl ChangingRange {
    /// Returns the range's change of block `number`, if it touches that block.
    fn on(&self, number: u64) -> Option<Change> {
        let (from, to) = (number * SECTORS, (number + 1) * SECTORS);
        if self.first >= to || self.end <= from {
            return None;
        }
        let mask = (0..SECTORS)
            .filter(|s| (self.first..self.end).contains(&(from + s)))
            .fold(0u8, |m, s| m | 1 << s);
        if mask != WHOLE && self.whole_only {
            return None;
        }
        // Only whole blocks are given up; zeros in part of one are written.
        let value = if mask != WHOLE && self.change.value == Value::Hole {
            Value::Zero
        } else {
            self.change.value
        };
        Some(Change { mask, value, ..self.change })
    }
}

/// The blocks of a volume of which `data` was read, from byte `offset` on, with what was seen of
/// each. The parts of sectors at the ends are left out.
pub(crate) fn blocks_seen(
    id: u32,
    offset: u64,
    data: &[u8],
) -> impl Iterator<Item = (u64, SeenSectors)> {
    let skip = (offset.next_multiple_of(SECTOR as u64) - offset) as usize;
    let first = offset.div_ceil(SECTOR as u64);
    let sectors: Vec<&[u8]> = data.get(skip..).unwrap_or(&[]).chunks_exact(SECTOR).collect();
    let mut at = 0;
    std::iter::from_fn(move || {
        sectors.get(at)?;
        let number = (first + at as u64) / SECTORS;
        let mut seen: SeenSectors = Default::default();
        let start = (first + at as u64) % SECTORS;
        for (s, found) in (start..).zip(&mut seen[start as usize..]) {
            let Some(bytes) = sectors.get(at) else { break };
            *found = Some(identify(bytes, id, number * SECTORS + s));
            at += 1;
        }
        Some((number, seen))
    })
}

/// Of the block in which a volume of so many sectors ends, what is behind the end becomes zeros.
fn clear_behind(blocks: &mut Blocks, sectors: u64) {
    let (last, kept) = (sectors / SECTORS, sectors % SECTORS);
    let Some(block) = blocks.get_mut(&last).filter(|_| kept > 0) else { return };
    let mask = (1u8 << kept) - 1;
    block.changes.iter_mut().for_each(|c| c.mask &= mask);
    block.changes.retain(|c| c.mask != 0);
    block.base[kept as usize..].fill(Value::Zero);
}

pub(super) fn describe(seen: &SeenSectors) -> String {
    let mut out = String::from("found:   ");
    for s in seen {
        out.push(' ');
        match s {
            None => out.push('?'),
            Some(SectorContent::Zero) => out.push('0'),
            Some(SectorContent::Write(w)) => out.push_str(&format!("w{w}")),
            Some(SectorContent::Wrong(what)) => out.push_str(&format!("[{what}]")),
        }
    }
    out
}

pub(super) fn explain(block: &Block, view: View) -> String {
    let name = |v: &Value| match v {
        Value::Hole | Value::Zero => "0".to_owned(),
        Value::Write(w) => format!("w{w}"),
    };
    let base: Vec<String> = block.base.iter().map(name).collect();
    let mut out =
        format!("{} and then, in boot {} at tick {}:", base.join(" "), view.era, view.from);
    for c in &block.changes {
        let sectors: String =
            (0..8).map(|s| if c.mask >> s & 1 == 1 { 'x' } else { '.' }).collect();
        let end = if c.end == FLYING { "in flight".to_owned() } else { format!("to {}", c.end) };
        let state = match (c.ok, c.durable) {
            (true, true) => "flushed",
            (true, false) => "done",
            (false, _) => "open",
        };
        out.push_str(&format!(
            "\n    op {} sectors {sectors} = {}, boot {}, ticks {} {end}, {state}",
            c.op,
            name(&c.value),
            c.era,
            c.start
        ));
    }
    out
}
