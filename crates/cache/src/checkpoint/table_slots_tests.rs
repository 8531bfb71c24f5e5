//! Checkpoints that end anywhere, against a model that keeps what each of them should say.

use std::collections::BTreeMap;

use base::{BucketGen, EntrySeq, Epoch, Prng};
use format::cache::bucket::BucketKind;
use format::cache::moved::{MovedPages, SPARES};
use format::cache::pool_seen::{PoolOpens, PoolSeen};
use format::cache::superblock::{CacheState, SLOTS};

use super::*;
use crate::device::layout::Layout;
use crate::device::slots::{Slot, newer_may_be_lost, newest};
use crate::device::table::{buckets_of, choose_slot};
use crate::store::journal::Place;

const LAYOUT: Layout =
    Layout { bucket_blocks: 16, buckets: 600, journal_blocks: 256, moved: MovedPages([0; SPARES]) };
const UUID: [u8; 16] = [7; 16];

type Table = Vec<Vec<BucketRecord>>;

/// A device with a volatile cache.
#[derive(Default)]
struct Disk {
    stable: BTreeMap<u64, Vec<u8>>,
    pending: Vec<(u64, Vec<u8>)>,
}

impl Disk {
    fn write(&mut self, offset: u64, block: &[u8]) {
        self.pending.push((offset, block.to_vec()));
    }

    fn flush(&mut self) {
        self.stable.extend(self.pending.drain(..));
    }

    fn read(&self, offset: u64) -> Vec<u8> {
        self.stable.get(&offset).cloned().unwrap_or_else(|| vec![0; BLOCK])
    }

    /// Power fails: each write that was not flushed is there, is not, or is torn.
    fn power_cut(&mut self, rng: &mut Prng) {
        for (offset, mut block) in std::mem::take(&mut self.pending) {
            match rng.below(3) {
                0 => continue,
                1 => block[BLOCK / 2..].copy_from_slice(&self.read(offset)[BLOCK / 2..]),
                _ => {}
            }
            self.stable.insert(offset, block);
        }
    }

    /// What stands there goes bad by itself.
    fn spoil(&mut self, offset: u64) {
        self.stable.insert(offset, vec![0xa5; BLOCK]);
    }
}

fn first() -> CacheSuperblock {
    CacheSuperblock {
        uuid: UUID,
        pool_uuid: [1; 16],
        sequence: 1,
        incarnation: 0,
        generation: Generation(1),
        root: None,
        bucket_blocks: LAYOUT.bucket_blocks,
        bucket_count: LAYOUT.buckets,
        table_start: Layout::TABLE_START,
        journal_start: LAYOUT.ring().offset / base::BLOCK_U64,
        journal_blocks: LAYOUT.journal_blocks,
        replay_position: 0,
        replay_sequence: EntrySeq(1),
        epoch: Epoch(1),
        cut: Epoch(0),
        staged: (0, 0),
        counted_from: Epoch(1),
        pool_seen: PoolSeen::default(),
        opens: PoolOpens::default(),
        moved: MovedPages::default(),
        table_digest: (0..LAYOUT.pages())
            .fold(0, |sum: u64, page| sum.wrapping_add(page_digest(page, Generation(1)))),
        state: CacheState::Attached,
        shard: 0,
    }
}

fn empty_table() -> Table {
    (0..LAYOUT.pages())
        .map(|page| vec![BucketRecord::default(); buckets_of(&LAYOUT, page).count()])
        .collect()
}

fn formatted(bufs: &BufPool) -> Disk {
    let mut disk = Disk::default();
    for (page, records) in empty_table().iter().enumerate() {
        let block = encode_page(UUID, page as u32, 0, records, Generation(1), bufs);
        disk.write(LAYOUT.page_offset(page as u32, 0), &block);
    }
    let mut block = bufs.zeroed(BLOCK);
    first().encode(&mut block);
    disk.write(CacheSuperblock::offset_of(1), &block);
    disk.flush();
    disk
}

/// What a restart finds: the state, and what the table says.
fn open(disk: &Disk, bufs: &BufPool) -> (DurableState, Table) {
    open_without(disk, bufs, &[]).expect("all slots can be read")
}

/// The same where some slots cannot be read now; `None`: it is refused.
fn open_without(disk: &Disk, bufs: &BufPool, unreadable: &[u64]) -> Option<(DurableState, Table)> {
    let read = |slot: u64| {
        if unreadable.contains(&slot) {
            return Slot::of(Err("it cannot be read".into())).unwrap();
        }
        Slot::of(Ok(&disk.read(CacheSuperblock::offset_of(slot)))).unwrap()
    };
    let slots: Vec<Slot> = (0..SLOTS).map(read).collect();
    let best = newest(&slots)?;
    if newer_may_be_lost(&slots, best) {
        return None;
    }
    let (mut table, mut digest) = (Table::new(), 0u64);
    let mut durable = DurableState::new(best.clone(), best.incarnation + 1, PoolOpens::default());
    for page in 0..LAYOUT.pages() {
        let both = [0, 1].map(|slot| {
            let mut block = bufs.zeroed(BLOCK);
            block.copy_from_slice(&disk.read(LAYOUT.page_offset(page, slot)));
            Some(block)
        });
        let found = choose_slot(&both, &LAYOUT, UUID, page, best.generation).expect("a page");
        digest = digest.wrapping_add(page_digest(page, found.generation));
        table.push(found.records.clone());
        durable.add_page(found);
    }
    assert_eq!(digest, best.table_digest, "a page is older than the superblock says");
    Some((durable, table))
}

/// How far a checkpoint came.
#[derive(PartialEq, Eq, Debug)]
enum End {
    /// It is not durable.
    Nowhere,
    /// Its first superblock may be durable.
    Between,
    /// It is durable.
    Durable,
    /// It did all that it has to.
    Whole,
}

/// A checkpoint that stops before its step `stop`, if it has so many.
fn checkpoint(
    (disk, durable): (&mut Disk, &mut DurableState),
    (table, generation): (&Table, Generation),
    bufs: &BufPool,
    stop: u64,
) -> End {
    let mut step = 0;
    let mut goes_on = || {
        step += 1;
        step <= stop
    };
    if durable.lacks_twin() {
        let (offset, block) = durable.next_superblock(bufs);
        disk.write(offset, &block);
        if !goes_on() {
            return End::Nowhere;
        }
        disk.flush();
    }
    let pages: Vec<NewPage> = (0..LAYOUT.pages())
        .map(|page| NewPage { page, records: table[page as usize].clone() })
        .filter(|new| durable.differs(new.page, &new.records))
        .collect();
    for page in &pages {
        if !goes_on() {
            return End::Nowhere;
        }
        let (slot, block) = durable.encode_page(page, generation, bufs);
        disk.write(LAYOUT.page_offset(page.page, slot), &block);
    }
    if !goes_on() {
        return End::Nowhere;
    }
    disk.flush();
    let named = CheckpointState {
        generation,
        root: None,
        place: Place { position: 0, sequence: EntrySeq(generation.0) },
        epochs: (Epoch(1), Epoch(0)),
        staged: (0, 0),
        counted_from: Epoch(1),
        pool_seen: PoolSeen::default(),
    };
    durable.name(&named, &pages);
    for copy in 0..2 {
        let (offset, block) = durable.next_superblock(bufs);
        disk.write(offset, &block);
        if !goes_on() {
            return if copy == 0 { End::Between } else { End::Durable };
        }
        disk.flush();
    }
    let written: Vec<u32> = pages.iter().map(|new| new.page).collect();
    durable.complete(generation, pages);
    for page in written {
        if !goes_on() {
            return End::Durable;
        }
        let (slot, block) = durable.encode_again(page, bufs);
        disk.write(LAYOUT.page_offset(page, slot), &block);
    }
    End::Whole
}

/// A checkpoint that ends well, and whatever flushes the device afterwards.
fn whole(
    (disk, durable): (&mut Disk, &mut DurableState),
    of: (&Table, Generation),
    bufs: &BufPool,
) {
    assert_eq!(checkpoint((disk, durable), of, bufs, u64::MAX), End::Whole);
    disk.flush();
}

fn change(table: &mut Table, rng: &mut Prng) {
    for _ in 0..rng.below(4) {
        let page = rng.below(table.len() as u64) as usize;
        let bucket = rng.below(table[page].len() as u64) as usize;
        let generation = BucketGen(rng.below(1 << 20) as u32);
        table[page][bucket] = BucketRecord {
            generation,
            kind: BucketKind::Data,
            live: rng.below(16) as u16,
            ..BucketRecord::default()
        };
    }
}

#[test]
fn a_checkpoint_that_stops_anywhere_leaves_itself_or_the_one_before() {
    let bufs = BufPool::new(0);
    for seed in 0..400 {
        let mut rng = Prng::new(seed);
        let mut disk = formatted(&bufs);
        let (mut durable, mut table) = open(&disk, &bufs);
        let mut generation = Generation(1);
        // The incarnation that made each checkpoint: a twin is a copy, also of that.
        let mut made = BTreeMap::from([(generation, 0)]);
        for _ in 0..20 {
            generation.0 += 1;
            made.insert(generation, durable.incarnation);
            let before = table.clone();
            change(&mut table, &mut rng);
            let stop = rng.below(14);
            let ends = checkpoint((&mut disk, &mut durable), (&table, generation), &bufs, stop);
            if ends == End::Whole && rng.one_in(2) {
                // It goes on living.
                continue;
            }
            disk.power_cut(&mut rng);
            let (found, says) = open(&disk, &bufs);
            let is_new = match ends {
                End::Nowhere => false,
                End::Between => found.superblock.generation == generation,
                End::Durable | End::Whole => true,
            };
            assert_eq!(says, if is_new { table.clone() } else { before }, "seed {seed}");
            let sb = &found.superblock;
            assert_eq!(sb.incarnation, made[&sb.generation], "seed {seed}");
            (durable, table) = (found, says);
            // An open writes the twin of what it has found, and may be refused then, or cut short.
            let (offset, block) = durable.twin(&bufs);
            disk.write(offset, &block);
            if rng.one_in(2) {
                disk.flush();
            } else {
                disk.power_cut(&mut rng);
                let (found, says) = open(&disk, &bufs);
                assert_eq!(says, table, "seed {seed}");
                durable = found;
            }
        }
    }
}

#[test]
fn what_goes_bad_after_a_checkpoint_takes_nothing_with_it() {
    let bufs = BufPool::new(0);
    for seed in 0..200 {
        let mut rng = Prng::new(seed);
        let mut disk = formatted(&bufs);
        let (mut durable, mut table) = open(&disk, &bufs);
        for generation in 2..12 {
            // The first writes every page, and with that both slots of each.
            change(&mut table, &mut rng);
            whole((&mut disk, &mut durable), (&table, Generation(generation)), &bufs);
            if rng.one_in(2) {
                let page = rng.below(u64::from(LAYOUT.pages())) as u32;
                disk.spoil(LAYOUT.page_offset(page, rng.below(2) as u8));
            } else {
                let newest = durable.superblock.sequence;
                disk.spoil(CacheSuperblock::offset_of(newest - rng.below(2)));
            }
            let (found, says) = open(&disk, &bufs);
            assert_eq!(says, table, "seed {seed}");
            durable = found;
        }
    }
}

/// Slots that cannot be read at one open may be well at the next, and the other way round.
#[test]
fn an_open_that_cannot_read_slots_has_the_newest_or_is_refused() {
    let bufs = BufPool::new(0);
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..400 {
        let mut rng = Prng::new(seed);
        let mut disk = formatted(&bufs);
        let (mut durable, mut table) = open(&disk, &bufs);
        for generation in 2..20 {
            change(&mut table, &mut rng);
            whole((&mut disk, &mut durable), (&table, Generation(generation)), &bufs);
            let unreadable: Vec<u64> = (0..rng.below(4)).map(|_| rng.below(SLOTS)).collect();
            match open_without(&disk, &bufs, &unreadable) {
                Some((found, says)) => {
                    assert_eq!(says, table, "seed {seed}: without {unreadable:?}");
                    (durable, opened) = (found, opened + 1);
                }
                None => (durable, refused) = (open(&disk, &bufs).0, refused + 1),
            }
        }
    }
    assert!(opened > 1_000 && refused > 100, "{opened} opened, {refused} refused");
}
