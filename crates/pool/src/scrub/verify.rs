//! Reading and verifying the copies of runs, and mending blocks that are bad.

use std::ops::Range;
use std::rc::Rc;

use base::{BLOCK, Buf, Crc, Result, Slice, crc32c};
use model::scrub::BlockKind;
use queue::{Class, ScrubReads};

use crate::core::Core;
use crate::devices::CopyPlace;
use crate::space::Pin;
use crate::transfer::copies::CopyReader;
use crate::transfer::heal::Healer;
use crate::transfer::walk::{ExpectedBlock, Owner, ReadRun};

/// The places of a block.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    /// The copies of the block that count.
    copies: &'a [CopyPlace],
    /// The places where chunks that are behind may have the block. They are asked last, and never
    /// written.
    behind: &'a [CopyPlace],
}

impl<'a> Places<'a> {
    /// Of a block of which each device in use has a copy.
    pub fn of(copies: &'a [CopyPlace]) -> Places<'a> {
        Places { copies, behind: &[] }
    }

    fn rows(self) -> impl Iterator<Item = usize> + 'a {
        self.copies.iter().chain(self.behind).map(|copy| copy.row)
    }
}

/// The outcome for a block that seemed to be bad.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MendOutcome {
    /// All copies are good when they are read again.
    Good,
    /// Some copies were bad. Each was written again from a good one, or could not be.
    Healed,
    /// No copy is good.
    Lost,
}

/// The copies of a block, as they were read.
#[derive(Default)]
struct SortedCopies {
    /// The content of a good copy.
    good: Option<Slice>,
    /// The copies that are bad, or cannot be read.
    bad: Vec<CopyPlace>,
    /// A device in use that answered nothing: what it has is not known.
    gone: Option<usize>,
}

/// Verifies copies of blocks, and mends those that are bad.
pub(crate) struct Verifier {
    pub(super) core: Core,
    healer: Rc<Healer>,
    copies: Rc<CopyReader>,
}

impl Verifier {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, healer: &Rc<Healer>, copies: &Rc<CopyReader>) -> Rc<Verifier> {
        Rc::new(Verifier { core: core.clone(), healer: healer.clone(), copies: copies.clone() })
    }

    /// Reads all copies of a run, of the devices that are scrubbed, and mends what is bad. `pin`
    /// was taken when its checksums were looked up.
    pub(super) async fn verify_run(&self, run: ReadRun, pin: Pin) -> Result<()> {
        let only = self.core.state().scrub.device();
        let copies = self.core.state().copies_for(run.first(), &pin);
        let mut reads = Vec::new();
        for CopyPlace { row, offset } in copies {
            if only.is_some_and(|only| only != row) {
                continue;
            }
            let Some(disk) = self.core.disk(row) else { continue };
            // The device's queue makes one request of neighbours that wait together, as large as
            // the device may have at the moment: beside clients it is one of these.
            for piece in pieces(&run, ScrubReads::of(disk.kind()).bytes) {
                let (disk, offset) = (disk.clone(), offset + (piece.start * BLOCK) as u64);
                let len = piece.len() * BLOCK;
                let read = async move { disk.read_new(Class::Scrub, offset, len).await };
                reads.push((piece, self.core.rt().spawn(read)));
            }
        }
        let mut suspects: Vec<ExpectedBlock> = Vec::new();
        for (piece, read) in reads {
            let Some((outcome, buf)) = read.await else { continue };
            let blocks = blocks_of(&run, &piece);
            // One unreadable block fails the whole read, so then each block is looked at alone.
            let bad = |e: &&ExpectedBlock| outcome.is_err() || !is_right(&buf, &run, &piece, e);
            suspects.extend(blocks.iter().filter(bad));
            let now = self.core.now();
            self.core.state_mut().scrub.verified(now, (blocks.len() * BLOCK) as u64);
        }
        suspects.sort_unstable_by_key(|e| e.addr);
        suspects.dedup_by_key(|e| e.addr);
        for e in suspects {
            self.mend_block(&e, &pin).await?;
        }
        drop(pin);
        Ok(())
    }

    async fn mend_block(&self, e: &ExpectedBlock, pin: &Pin) -> Result<()> {
        let kind =
            if matches!(e.owner, Owner::Data(..)) { BlockKind::Data } else { BlockKind::Node };
        let (copies, behind, mut away) = {
            let st = self.core.state();
            let (copies, behind) = (st.copies_for(e.addr, pin), st.copies_behind(e.addr, pin));
            (copies, behind, st.may_be_away(e.addr))
        };
        let crc: Crc = e.crc;
        let is_good = |block: &[u8]| crc32c(block) == crc;
        let places = Places { copies: &copies, behind: &behind };
        if self.mend(places, Class::Scrub, kind, is_good).await? != MendOutcome::Lost {
            return Ok(());
        }
        // A device with a copy may have come back, or have gone, meanwhile.
        away |= self.core.state().may_be_away(e.addr);
        if away {
            self.core.state_mut().scrub.lacks_device();
            tracing::warn!(
                kind = ?kind, block = e.addr.0,
                "scrub: no copy of a block is good on the devices in use, and a device that is \
                 away may have a good one: bring it back, and scrub again"
            );
            return Ok(());
        }
        self.core.state_mut().scrub.lost(e.extent());
        match e.owner {
            Owner::Data(volume, lba) => tracing::error!(
                volume = %self.core.state().volume_name(volume),
                block = lba.0,
                "scrub: no copy of a block of a volume is good: reads of it fail until it is \
                 written again"
            ),
            Owner::Node(tree) => tracing::error!(
                tree = %self.core.state().tree_name(tree), block = e.addr.0,
                "scrub: no copy of a node is good: what it refers to cannot be read; run \
                 forebay check"
            ),
        }
        Ok(())
    }

    /// Reads each copy of a block, and overwrites bad copies from a good one. The caller makes sure
    /// that nothing else writes to this place meanwhile. Fails if no good copy was read, and a
    /// device answers nothing.
    pub(super) async fn mend(
        &self,
        places: Places<'_>,
        class: Class,
        kind: BlockKind,
        is_good: impl Fn(&[u8]) -> bool,
    ) -> Result<MendOutcome> {
        let mut sorted = self.sort(places, class, &is_good).await;
        if sorted.good.is_none() {
            // A device may have answered nothing meanwhile: what could not be read counts only if
            // it cannot be read between two answers either.
            self.copies.answer(places.rows(), class).await?;
            sorted = self.sort(places, class, &is_good).await;
            if sorted.good.is_none() {
                self.copies.answer(places.rows(), class).await?;
            }
        }
        let SortedCopies { good, bad, gone } = sorted;
        let Some(good) = good else {
            if let Some(row) = gone {
                return Err(self.copies.answers_nothing(row));
            }
            // Of a page the caller has the content, and a commit writes it again.
            let healed = kind == BlockKind::Page;
            bad.iter().for_each(|copy| self.core.state_mut().scrub.found(copy.row, kind, healed));
            return Ok(if bad.is_empty() { MendOutcome::Good } else { MendOutcome::Lost });
        };
        if bad.is_empty() {
            return Ok(MendOutcome::Good);
        }
        for copy in bad {
            let healed = self.rewrite(copy, class, &good, &is_good).await.is_ok();
            self.core.state_mut().scrub.found(copy.row, kind, healed);
        }
        Ok(MendOutcome::Healed)
    }

    async fn sort(
        &self,
        Places { copies, behind }: Places<'_>,
        class: Class,
        is_good: &impl Fn(&[u8]) -> bool,
    ) -> SortedCopies {
        let mut sorted = SortedCopies::default();
        for &copy in copies {
            let CopyPlace { row, offset } = copy;
            match self.read_copy(copy, class).await {
                None => {}
                Some(Ok(block)) if is_good(&block) => {
                    sorted.good.get_or_insert_with(|| block.freeze());
                }
                Some(Err(e)) if e.is_gone() => sorted.gone = Some(row),
                Some(outcome) => {
                    let now = self.core.now();
                    let mut st = self.core.state_mut();
                    match outcome {
                        Ok(_) => st.note_bad_block(row, offset, now),
                        Err(e) => st.devices.note_read_error(row, offset, e, now),
                    }
                    sorted.bad.push(copy);
                }
            }
        }
        for &copy in behind {
            if sorted.good.is_some() {
                break;
            }
            match self.read_copy(copy, class).await {
                Some(Ok(block)) if is_good(&block) => sorted.good = Some(block.freeze()),
                Some(Err(e)) if e.is_gone() => sorted.gone = Some(copy.row),
                _ => {}
            }
        }
        sorted
    }

    /// True if all of these copies are good whose devices are in use.
    pub(crate) async fn are_good(
        &self,
        copies: &[CopyPlace],
        is_good: impl Fn(&[u8]) -> bool,
    ) -> bool {
        for &copy in copies {
            match self.read_copy(copy, Class::Scrub).await {
                None => {}
                Some(Ok(block)) if is_good(&block) => {}
                Some(Err(e)) if e.is_gone() => {}
                Some(_) => return false,
            }
        }
        true
    }

    /// A copy; `None` if its device is out of use.
    async fn read_copy(
        &self,
        CopyPlace { row, offset }: CopyPlace,
        class: Class,
    ) -> Option<std::result::Result<Buf, base::IoError>> {
        let disk = self.core.disk(row)?;
        let (outcome, buf) = disk.read_new(class, offset, BLOCK).await;
        Some(outcome.map(|()| buf))
    }

    /// Writes a copy and reads it again.
    async fn rewrite(
        &self,
        copy: CopyPlace,
        class: Class,
        good: &Slice,
        is_good: impl Fn(&[u8]) -> bool,
    ) -> Result<()> {
        let CopyPlace { row, offset } = copy;
        self.healer.heal(copy, good.clone(), class).await?;
        match self.read_copy(copy, class).await {
            Some(Ok(block)) if is_good(&block) => Ok(()),
            _ => {
                let path = self.core.state().devices.path(row).to_owned();
                let text = format!(
                    "a block at byte {offset} of {path} is bad again after it was \
                    written; replace the device"
                );
                tracing::error!("scrub: {text}");
                Err(base::StorageError::new(base::ErrorKind::Io, text))
            }
        }
    }
}

/// The reads of a run, as ranges of its blocks: pieces of so many bytes at most, without those that
/// are nothing but gap.
fn pieces(run: &ReadRun, bytes: usize) -> Vec<Range<usize>> {
    let (len, most) = (run.len() as usize, bytes / BLOCK);
    let all = (0..len).step_by(most).map(|at| at..len.min(at + most));
    all.filter(|piece| !blocks_of(run, piece).is_empty()).collect()
}

/// The blocks of a run that are to be verified in a piece of it.
fn blocks_of<'a>(run: &'a ReadRun, piece: &Range<usize>) -> &'a [ExpectedBlock] {
    let before =
        |end: usize| run.blocks.partition_point(|e| ((e.addr.0 - run.first().0) as usize) < end);
    &run.blocks[before(piece.start)..before(piece.end)]
}

/// True if a block of a run, in what was read of a piece of it, is what it should be.
fn is_right(buf: &[u8], run: &ReadRun, piece: &Range<usize>, e: &ExpectedBlock) -> bool {
    let at = ((e.addr.0 - run.first().0) as usize - piece.start) * BLOCK;
    buf.get(at..at + BLOCK).is_some_and(|block| crc32c(block) == e.crc)
}
