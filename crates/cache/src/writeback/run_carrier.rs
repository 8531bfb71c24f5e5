//! One run of a pass: neighbouring dirty blocks are read from the cache, and written into the pass.

use std::rc::Rc;

use base::{BLOCK_U64, BlockRange, ErrorKind, Lba, Result, SliceList, StorageError, worth_telling};
use pool::Pass;
use queue::Class;
use rt::sync::Semaphore;
use smallvec::SmallVec;

use crate::core::Core;
use crate::health::fail::Failures;
use crate::space::request_room::Room;
use crate::store::key::{Body, IndexKey};
use crate::transfer::bucket_io::BucketIo;
use crate::writeback::cuts::Cut;
use crate::writeback::into_pass::{gone_is_fine, write_in};
use crate::writeback::kept::Keeper;
use crate::writeback::staged::StagedCopies;
use crate::writeback::walk::{CarriedBlocks, Content};

/// Carries runs of dirty blocks into a pass.
pub(crate) struct RunCarrier {
    core: Core,
    failures: Rc<Failures>,
    bucket_io: Rc<BucketIo>,
    room: Rc<Room>,
    keeper: Rc<Keeper>,
    staged: Rc<StagedCopies>,
}

impl RunCarrier {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        failures: &Rc<Failures>,
        bucket_io: &Rc<BucketIo>,
        room: &Rc<Room>,
        keeper: &Rc<Keeper>,
        staged: &Rc<StagedCopies>,
    ) -> Rc<RunCarrier> {
        Rc::new(RunCarrier {
            core: core.clone(),
            failures: failures.clone(),
            bucket_io: bucket_io.clone(),
            room: room.clone(),
            keeper: keeper.clone(),
            staged: staged.clone(),
        })
    }

    /// Reads one run from the cache and writes it into the pass.
    pub(super) async fn carry_run(
        self: &Rc<Self>,
        pass: &Pass,
        mut run: CarriedBlocks,
        cut: &Cut,
        reading: Semaphore,
    ) -> Result<()> {
        // A cut that a failed pass has left may have blocks behind the volume's end by now. The
        // size changes between passes only.
        let end = self.core.pool().volume_size(run.volume).unwrap_or(0).div_ceil(BLOCK_U64);
        if run.lba.0 + run.blocks > end {
            run.blocks = end.saturating_sub(run.lba.0);
            if let Content::Data(parts) = &mut run.content {
                parts.retain(|p| p.lba.0 < end);
                parts.iter_mut().for_each(|p| *p = p.slice(p.lba.0, end));
            }
            if run.blocks == 0 {
                return Ok(());
            }
        }
        let end = run.lba.plus(run.blocks);
        let entered = match &run.content {
            Content::Data(_) => pass.reach(run.volume, run.lba, end).await,
            Content::Zeros => gone_is_fine(pass.discard(run.volume, run.lba, end).await),
            Content::Staged(epoch) => {
                let range = BlockRange::new(run.lba, end);
                self.staged.copy_staged(pass, run.volume, *epoch, range).await
            }
        };
        match entered {
            Err(e) if e.kind == ErrorKind::Unreachable => {
                return self.keeper.keep_run(&run, e, cut).await;
            }
            other => other?,
        }
        let Content::Data(parts) = run.content else { return Ok(()) };
        let turn = reading.acquire(1).await;
        let mut reads = Vec::with_capacity(parts.len());
        for part in parts {
            let this = self.clone();
            reads.push(self.core.rt().spawn(async move {
                let Body::Data { addr, crcs, .. } = &part.body else {
                    unreachable!("a run of data")
                };
                let data = this.bucket_io.read_bucket(*addr, crcs, Class::WriteBack).await;
                let data = match data {
                    Ok(data) => Some(this.staged.carried(&part, data).await),
                    Err(_) => None,
                };
                (data, part)
            }));
        }
        let mut good: SmallVec<[(SliceList, Vec<base::Crc>, Lba); 1]> = SmallVec::new();
        for r in reads {
            let Some((data, part)) = r.await else {
                return Err(StorageError::new(ErrorKind::Io, "the runtime has ended"));
            };
            let Some(Ok((data, crcs))) = data else {
                self.carry_bad(part, pass, cut).await?;
                continue;
            };
            self.note_carried(&part).await?;
            match good.last_mut() {
                Some((list, sums, lba)) if lba.0 + sums.len() as u64 == part.lba.0 => {
                    list.push(data);
                    sums.extend(crcs);
                }
                _ => good.push((SliceList::from_iter([data]), crcs, part.lba)),
            }
        }
        drop(turn);
        for (data, crcs, lba) in good {
            write_in(pass, run.volume, lba, data, &crcs).await?;
        }
        Ok(())
    }

    /// Carries an extent with a bad block, block by block: good blocks go into the pass, bad ones
    /// stay dirty.
    async fn carry_bad(&self, part: IndexKey, pass: &Pass, cut: &Cut) -> Result<()> {
        for i in 0..part.len() {
            let one = part.slice(part.lba.0 + i, part.lba.0 + i + 1);
            let Body::Data { addr, crcs, .. } = &one.body else { continue };
            let read = self.bucket_io.read_bucket(*addr, crcs, Class::WriteBack).await;
            let mine = read.is_err();
            let why = match read {
                Ok(data) => match self.staged.carried(&one, data).await {
                    Ok((data, crcs)) => {
                        let data = SliceList::from_iter([data]);
                        write_in(pass, one.volume, one.lba, data, &crcs).await?;
                        self.note_carried(&one).await?;
                        continue;
                    }
                    // Gone with its volume.
                    Err(e) if e.kind == ErrorKind::NotFound => continue,
                    Err(e) => {
                        format!("is written in part, and the pool cannot read the rest ({e}): it")
                    }
                },
                Err(_) => {
                    let volume = self.core.pool().volume_name(one.volume);
                    let what = format!("block {} of volume {volume}", one.lba);
                    self.failures.check_answers(Class::WriteBack, what).await?;
                    "is bad in the cache and".to_owned()
                }
            };
            self.staged.copy_below(pass, &one).await?;
            self.core.writeback().passes_mut().leaves_bad();
            let (bad, addr, mut room) = (one.clone(), *addr, self.room.room_in_pass(1, 1).await?);
            // The cut keeps its own room: a later try may read the block well.
            let mut reserved = self.core.pool().take_over(1);
            let known = self
                .core
                .resident(Class::WriteBack, |st| {
                    let range = bad.range();
                    let now = st.index.overlapping(&st.buckets, bad.volume, range, 1)?;
                    let now = now.first().map(|e| e.slice(range.from.0, range.end.0));
                    let same =
                        now.filter(|e| matches!(e.body, Body::Data { addr: a, .. } if a == addr));
                    match same.map(|e| e.written.is_some_and(|w| w <= cut.epoch)) {
                        Some(true) => {}
                        // Entered again by an earlier try.
                        Some(false) => return Ok(None),
                        None => {
                            // Overwritten since: the pool's image will lack what the cut has there,
                            // until the next one.
                            if mine {
                                st.buckets.condemn(addr);
                            }
                            st.lost_in_cut();
                            return Ok(None);
                        }
                    }
                    // The block is entered again, and is as bad as before.
                    let was_known = st.bad_blocks().has(bad.volume, bad.lba);
                    let again =
                        IndexKey { written: Some(st.buckets.epochs().open()), ..bad.clone() };
                    st.change_dirty(&mut room, &mut reserved, bad.volume, range, &[again])?;
                    let known = if mine {
                        st.buckets.condemn(addr);
                        st.note_bad(bad.volume, bad.lba)
                    } else {
                        st.note_stuck(bad.volume, bad.lba)
                    };
                    Ok(known.filter(|_| !was_known))
                })
                .await?;
            if known.is_some_and(worth_telling) {
                tracing::error!(cache = %self.core.path(), "block {} of volume {} {why} cannot be \
                    written back; forebay cache status names all such blocks", one.lba,
                    self.core.pool().volume_name(one.volume));
            }
        }
        Ok(())
    }

    /// Blocks that a pass has carried are bad no more, unless they were replaced since.
    async fn note_carried(&self, e: &IndexKey) -> Result<()> {
        match e.body {
            Body::Data { addr, .. } => {
                self.core.note_good(Class::WriteBack, e.volume, e.range(), addr).await
            }
            Body::Zeros { .. } | Body::Staged { .. } => Ok(()),
        }
    }
}
