//! The content of a disk: for every sector the stable version, and the later versions that a loss
//! of power may take.
//!
//! `base` holds the stable versions, `current` is what reads see, and `log` holds the writes
//! between the two, in the order in which they completed. A flush moves the head of the log into
//! `base`. A [power cut](Store::power_cut) decides for every sector of every record whether it had
//! reached the medium. The sector then holds the last version that had.
//!
//! A failed flush may [lose](Store::lose) sectors of the log. `current` keeps them, but they are
//! removed from the log and are not in `base`. Only writing them again makes them stable.
//!
//! Faults that change bytes (rot, lost and misdirected writes) split the disk into two images: the
//! actual one, and the pristine one that the same history would have produced without these faults.
//! The images are joined again when they are equal. Damage belongs to a version: rewriting a sector
//! heals it, and losing that rewrite brings the damage back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use base::prng::mix64;
use base::{Prng, SECTOR};

use crate::fault::FlushLoss;
use crate::table::{PAGE_U64, Piece, SECTORS, Table};

const SECTOR_U64: u64 = SECTOR as u64;

#[derive(Clone)]
struct Image {
    current: Table,
    base: Table,
}

impl Image {
    fn at_rest(table: &Table) -> Image {
        Image { current: table.clone(), base: table.clone() }
    }
}

/// A completed write (or discard) that is not yet in `base`.
struct Record {
    seq: u64,
    /// Written with FUA: no cut removes it.
    stable: bool,
    pieces: Vec<Piece>,
    /// The pieces that it should have written, if they differ from those it wrote.
    pristine: Option<Vec<Piece>>,
    /// Unreadable sectors that this write made readable.
    cured: Vec<u64>,
}

/// The content of a disk at one moment. Restoring it later gives a stale device.
#[derive(Clone)]
pub struct DiskSnapshot {
    actual: Table,
    pristine: Option<Table>,
    unreadable: BTreeSet<u64>,
}

pub(crate) struct Store {
    actual: Image,
    pristine: Option<Image>,
    log: VecDeque<Record>,
    unreadable: BTreeSet<u64>,
    /// Sectors that reads see in `current` but that the medium does not have. They stay lost until
    /// they are written again. The value says whether the sector is unreadable on the medium.
    lost: BTreeMap<u64, bool>,
    completed: u64,
}

/// The part of the unstable content that survives a cut.
#[derive(Clone, Copy)]
enum Survival {
    All,
    Nothing,
    /// Every sector independently, with a probability of this number in 256.
    Sectors(u64),
    /// A prefix of every write: nothing, a part, or all of it.
    Prefixes,
    /// All writes below this sequence number, and no others.
    Until(u64),
    /// All writes from this sequence number on, and none before them.
    From(u64),
}

impl Survival {
    fn by_chance(rng: &mut Prng, first_seq: u64, end_seq: u64) -> Survival {
        match rng.below(7) {
            0 => Survival::All,
            1 => Survival::Nothing,
            2 | 3 => Survival::Sectors([8, 64, 128, 192, 248][rng.below(5) as usize]),
            4 => Survival::Prefixes,
            5 => Survival::From(rng.range(first_seq, end_seq + 1)),
            _ => Survival::Until(rng.range(first_seq, end_seq + 1)),
        }
    }

    /// Whether `sector` survives of the record `seq`, which begins at sector `first` and has `len`
    /// sectors. The answer depends on the arguments alone, so that both images get the same one.
    fn keeps(self, salt: u64, seq: u64, first: u64, len: u64, sector: u64) -> bool {
        let of_write = mix64(salt ^ seq.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        match self {
            Survival::All => true,
            Survival::Nothing => false,
            Survival::Sectors(p) => mix64(of_write ^ sector) & 0xFF < p,
            Survival::Prefixes => match of_write % 4 {
                0 => false,
                1 => true,
                _ => sector.wrapping_sub(first) < (of_write >> 8) % (len + 1),
            },
            Survival::Until(end) => seq < end,
            Survival::From(first) => seq >= first,
        }
    }
}

impl Store {
    pub fn new(size_bytes: u64) -> Store {
        Store {
            actual: Image::at_rest(&Table::new(size_bytes)),
            pristine: None,
            log: VecDeque::new(),
            unreadable: BTreeSet::new(),
            lost: BTreeMap::new(),
            completed: 0,
        }
    }

    /// The table that reads see.
    pub fn current(&self) -> &Table {
        &self.actual.current
    }

    /// The table that reads would see without faults.
    pub fn pristine(&self) -> &Table {
        &self.pristine.as_ref().unwrap_or(&self.actual).current
    }

    /// Number of completed writes. A flush that is submitted now covers all of them.
    pub fn completed(&self) -> u64 {
        self.completed
    }

    /// True if a cut of power now may take a completed write.
    pub fn has_unstable(&self) -> bool {
        self.log.iter().any(|r| !r.stable)
    }

    pub fn is_unreadable(&self, offset: u64, len: u64) -> bool {
        len > 0
            && self
                .unreadable
                .range(offset / SECTOR_U64..(offset + len).div_ceil(SECTOR_U64))
                .next()
                .is_some()
    }

    /// Completes a write: `pieces` become visible. `pristine` is what the write should have
    /// written, if a fault changed it.
    pub fn write(&mut self, pieces: Vec<Piece>, pristine: Option<Vec<Piece>>, stable: bool) {
        if pristine.is_some() {
            self.split();
        }
        let mut cured = Vec::new();
        if !self.unreadable.is_empty() {
            cured = pieces
                .iter()
                .flat_map(Piece::sectors)
                .filter(|s| self.unreadable.remove(s))
                .collect();
        }
        if !self.lost.is_empty() {
            let written = pieces.iter().chain(pristine.iter().flatten()).flat_map(Piece::sectors);
            cured.extend(written.filter(|s| self.lost.remove(s) == Some(true)));
        }
        for piece in &pieces {
            self.actual.current.apply(piece);
        }
        if let Some(image) = &mut self.pristine {
            for piece in pristine.as_ref().unwrap_or(&pieces) {
                image.current.apply(piece);
            }
        }
        self.completed += 1;
        self.log.push_back(Record { seq: self.completed, stable, pieces, pristine, cured });
        // A stable record that has no unstable one before it can move into `base`.
        if self.log.front().is_some_and(|r| r.stable) {
            self.flush(self.log[0].seq);
        }
    }

    /// Makes the first `upto` writes stable.
    pub fn flush(&mut self, upto: u64) {
        while self.log.front().is_some_and(|r| r.seq <= upto || r.stable) {
            let Some(record) = self.log.pop_front() else { unreachable!("it has a front") };
            if let Some(image) = &mut self.pristine {
                record
                    .pristine
                    .as_ref()
                    .unwrap_or(&record.pieces)
                    .iter()
                    .for_each(|p| image.base.apply(p));
            }
            record.pieces.iter().for_each(|p| self.actual.base.apply(p));
        }
    }

    /// Fails a flush of the first `upto` writes. Sectors that have not reached the medium are lost,
    /// though reads still see them. Returns the number of sectors that lost their newest version.
    pub fn lose(&mut self, upto: u64, loses: FlushLoss, rng: &mut Prng) -> u64 {
        let first = self.log.front().map_or(upto + 1, |r| r.seq);
        let survival = match loses {
            FlushLoss::Nothing => return 0,
            FlushLoss::All => Survival::Nothing,
            FlushLoss::Part => Survival::by_chance(rng, first, upto.max(first) + 1),
        };
        let salt = rng.next_u64();
        let before = self.lost.len();
        for record in &mut self.log {
            let all = record.pieces.iter().chain(record.pristine.iter().flatten());
            let sectors: Vec<u64> = all.flat_map(Piece::sectors).collect();
            if record.seq <= upto && !record.stable {
                let keep = |pieces: &[Piece]| surviving(pieces, survival, salt, record.seq);
                let (pieces, pristine) =
                    (keep(&record.pieces), record.pristine.as_deref().map(keep));
                (record.pieces, record.pristine) = (pieces, pristine);
            }
            for sector in sectors {
                let covers = |pieces: &[Piece]| pieces.iter().any(|p| p.covers(sector));
                if covers(&record.pieces) || record.pristine.as_deref().is_some_and(covers) {
                    self.lost.remove(&sector);
                } else {
                    let unreadable = record.cured.contains(&sector);
                    *self.lost.entry(sector).or_default() |= unreadable;
                }
            }
            record.cured.retain(|s| !self.lost.contains_key(s));
        }
        (self.lost.len() - before.min(self.lost.len())) as u64
    }

    /// Ends the process whose flushes lost writes. For each lost sector the next process finds the
    /// version of the medium, or the newest version, which is then in the cache as an unflushed
    /// write.
    pub fn end_lost(&mut self, rng: &mut Prng) {
        if self.lost.is_empty() {
            return;
        }
        let share = rng.below(5);
        let lost = std::mem::take(&mut self.lost);
        let (again, dropped): (Vec<_>, Vec<_>) =
            lost.into_iter().partition(|_| rng.below(4) < share);
        self.unreadable.extend(dropped.iter().chain(&again).filter(|l| l.1).map(|l| l.0));
        let (mut written, mut pristine) = (Vec::new(), None);
        for (image, is_pristine) in
            [(Some(&mut self.actual), false), (self.pristine.as_mut(), true)]
        {
            let Some(image) = image else { continue };
            let newest = sectors_of(&image.current, &again);
            let mut medium = image.base.clone();
            for r in &self.log {
                let pieces = r.pristine.as_ref().filter(|_| is_pristine).unwrap_or(&r.pieces);
                pieces.iter().for_each(|p| medium.apply(p));
            }
            sectors_of(&medium, &dropped).iter().for_each(|p| image.current.apply(p));
            if is_pristine {
                pristine = Some(newest);
            } else {
                written = newest;
            }
        }
        self.write(written, pristine, false);
    }

    /// Cuts the power. `in_flight` are writes that have not completed. They may have reached the
    /// medium all the same.
    pub fn power_cut(&mut self, rng: &mut Prng, mut in_flight: Vec<Vec<Piece>>) {
        let salt = rng.next_u64();
        let first = self.log.front().map_or(self.completed + 1, |r| r.seq);
        let completed = Survival::by_chance(rng, first, self.completed + 1);
        let end = self.completed + in_flight.len() as u64;
        let flying = Survival::by_chance(rng, self.completed + 1, end + 1);
        for i in (1..in_flight.len()).rev() {
            in_flight.swap(i, rng.below(i as u64 + 1) as usize);
        }
        let flying_from = self.completed;
        self.unreadable
            .extend(std::mem::take(&mut self.lost).into_iter().filter(|l| l.1).map(|l| l.0));
        let records = std::mem::take(&mut self.log).into_iter().chain(
            (flying_from + 1..).zip(in_flight).map(|(seq, pieces)| Record {
                seq,
                stable: false,
                pieces,
                pristine: None,
                cured: Vec::new(),
            }),
        );
        for record in records {
            let survival = match (record.stable, record.seq <= flying_from) {
                (true, _) => Survival::All,
                (false, true) => completed,
                (false, false) => flying,
            };
            self.unreadable.extend(&record.cured);
            let kept = surviving(&record.pieces, survival, salt, record.seq);
            for piece in &kept {
                self.actual.base.apply(piece);
                piece.sectors().for_each(|s| _ = self.unreadable.remove(&s));
            }
            if let Some(image) = &mut self.pristine {
                let kept =
                    record.pristine.map_or(kept, |p| surviving(&p, survival, salt, record.seq));
                kept.iter().for_each(|p| image.base.apply(p));
            }
        }
        self.actual.current = self.actual.base.clone();
        if let Some(image) = &mut self.pristine {
            image.current = image.base.clone();
        }
        self.completed = end;
        if self.pristine.as_ref().is_some_and(|p| p.base.differences(&self.actual.base).is_empty())
        {
            self.pristine = None;
        }
    }

    fn split(&mut self) {
        self.pristine.get_or_insert_with(|| self.actual.clone());
    }

    /// Changes the stored content of `sector`, in the version that reads see.
    pub fn rot(&mut self, sector: u64, change: impl FnOnce(&mut [u8])) {
        self.split();
        let mut page = vec![0; PAGE_U64 as usize];
        self.actual.current.read(sector / SECTORS * PAGE_U64, &mut page);
        let start = (sector % SECTORS) as usize * SECTOR;
        change(&mut page[start..start + SECTOR]);
        let mask = 1 << (sector % SECTORS);
        let in_memory = self.lost.contains_key(&sector);
        let rotten = Piece { page: sector / SECTORS, mask, bytes: Some(page.into()) };
        self.actual.current.apply(&rotten);
        match self
            .log
            .iter_mut()
            .rev()
            .find(|r| !in_memory && r.pieces.iter().any(|p| p.covers(sector)))
        {
            Some(record) => {
                record.pristine.get_or_insert_with(|| record.pieces.clone());
                // The record covers the same sectors as before. The rotten sector comes from a
                // piece of its own.
                record
                    .pieces
                    .iter_mut()
                    .filter(|p| p.page == rotten.page)
                    .for_each(|p| p.mask &= !mask);
                record.pieces.push(rotten);
            }
            None if in_memory => {}
            None => self.actual.base.apply(&rotten),
        }
    }

    /// Makes `sector` unreadable until it is written again.
    pub fn make_unreadable(&mut self, sector: u64) {
        self.unreadable.insert(sector);
    }

    /// All sectors can be read again, with what they hold.
    pub fn make_readable(&mut self) {
        self.unreadable.clear();
        self.lost.values_mut().for_each(|unreadable| *unreadable = false);
        self.log.iter_mut().for_each(|record| record.cured.clear());
    }

    /// The sectors that fail reads now, or read differently from what they should.
    pub fn faulted(&self) -> Vec<u64> {
        let mut all = self.unreadable.clone();
        if let Some(image) = &self.pristine {
            all.extend(image.current.differences(&self.actual.current));
        }
        all.into_iter().collect()
    }

    pub fn snapshot(&self) -> DiskSnapshot {
        DiskSnapshot {
            actual: self.actual.current.clone(),
            pristine: self.pristine.as_ref().map(|p| p.current.clone()),
            unreadable: self.unreadable.clone(),
        }
    }

    pub fn restore(&mut self, snapshot: &DiskSnapshot) {
        self.actual = Image::at_rest(&snapshot.actual);
        self.pristine = snapshot.pristine.as_ref().map(Image::at_rest);
        self.unreadable.clone_from(&snapshot.unreadable);
        self.log.clear();
        self.lost.clear();
    }
}

/// The content that `table` has for these sectors.
fn sectors_of(table: &Table, sectors: &[(u64, bool)]) -> Vec<Piece> {
    let piece = |page: u64, sector: u64| Piece {
        page,
        mask: 1 << (sector % SECTORS),
        bytes: table.get(page).cloned(),
    };
    sectors.iter().map(|(sector, _)| piece(sector / SECTORS, *sector)).collect()
}

/// The part of a write's `pieces` that survives.
fn surviving(pieces: &[Piece], survival: Survival, salt: u64, seq: u64) -> Vec<Piece> {
    let first = pieces.iter().flat_map(Piece::sectors).min().unwrap_or(0);
    let len = pieces.iter().map(|p| u64::from(p.mask.count_ones())).sum();
    let cut = |piece: &Piece| {
        let mask = piece
            .sectors()
            .filter(|&s| survival.keeps(salt, seq, first, len, s))
            .fold(0, |mask, s| mask | 1 << (s % SECTORS));
        Piece { mask, ..piece.clone() }
    };
    pieces.iter().map(cut).filter(|p| p.mask != 0).collect()
}
