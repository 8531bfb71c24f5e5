//! Cuts: what the pool alone holds when its cache is gone.
//!
//! **What is promised.**
//!
//! * A volume that *writes back*: it has a cache in front and its mode is `writeback`. A flush is
//!   durable in the cache; the pool alone holds what the volume held at a cut that was taken,
//!   exactly, and none before the last that was seen published, nor older than `max_lag` allows
//!   ([`super::lag`]).
//! * Any other (`writethrough`, `writearound`, `none`, or no cache): the rules of the pool. A flush
//!   is a commit, and to lose the cache loses nothing.
//! * A switch of modes that returned: what had been answered before it began is durable, in the
//!   pool. From then on the rules of the new mode hold. Of a volume that begins to write back, the
//!   pool alone holds what it held then, until a newer cut is published. Cut short by a crash: the
//!   volume is in either mode, and what was flushed before is there in both. One that was about to
//!   cease to write back may have been written to the pool alone already: if it still writes back,
//!   the pool alone holds it as of a cut or of a later moment.
//! * An attach that returned: likewise for all volumes whose mode is `writeback`. Cut short, the
//!   pool has a cache, which is empty, or none.
//! * A detach that returned: what had been answered before it began is durable in the pool, and the
//!   pool has no cache. Cut short, it has the one it had, with the cuts it had, or none, and then
//!   nothing that was flushed is missing.
//! * A switch that failed (only where errors are allowed) leaves open which of the two the mode is,
//!   until another one returns, or the next open tells. Without the cache it cannot be said what
//!   the volume holds, until one to another mode than `writeback` returns.
//!
//! **How it is known.** The engine takes a cut when it likes, by opening the next epoch. The model
//! asks for the open epoch at every tick, before anything begins or ends: a new one says that the
//! cut was taken since the tick before, between two events of which the model knows. So what a cut
//! holds is exact: all that had been answered, nothing that had not begun, and what was under way
//! or not. Its image is kept until a newer cut is published. Switches, attaches and detaches return
//! to the model in the moment in which requests may go on, so the image of a volume that begins to
//! write back is exact too; it takes the place of the volume's images in all cuts that are kept, as
//! none of them has anything of it.
//!
//! The pool names the epoch that it holds. It must be that of a cut which was taken; then all
//! volumes that write back must hold what they held then, which no mixture of two moments does.
//!
//! Volumes are made, resized and deleted at once, whatever the cut: the image is of those that are
//! there, as long as they are, and what a shrink gave up is gone.

use pool::CacheMode;

use super::Model;
use super::cuts::{Cut, Gauge, Image};
use super::lag::EngineView;
use super::volume::Volume;

impl Model {
    /// Notes a cut if there was one, and judges the age of the pool's image.
    pub fn look(&mut self) -> Option<EngineView> {
        let sight = self.cuts.gauge.as_ref().map(|g| g())?;
        let EngineView { open, published, .. } = sight;
        if open > self.cuts.open {
            let first = std::mem::replace(&mut self.cuts.open, open);
            self.keep_cut(first, open - 1);
        }
        if published > self.cuts.published {
            self.cuts.published = published;
            self.forget_cuts();
            self.volumes.values_mut().for_each(|v| v.beyond_cut = false);
        }
        if let Err(text) = self.cuts.lag.look(sight) {
            self.too_old.get_or_insert(text);
        }
        Some(sight)
    }

    fn image(&self, id: u32) -> Option<Image> {
        self.volumes.get(&id).map(|v| Image { blocks: v.image(), tick: self.tick, era: self.era })
    }

    fn keep_cut(&mut self, first: u32, last: u32) {
        let images = self.volumes.keys().filter_map(|id| Some((*id, self.image(*id)?))).collect();
        self.cuts.kept.push(Cut { first, last, tick: self.tick, images });
        self.cuts.taken += 1;
    }

    /// Forgets what no pool can hold any more.
    fn forget_cuts(&mut self) {
        let published = self.cuts.published;
        let Some(at) = self.cuts.kept.iter().rposition(|c| c.first <= published) else { return };
        self.cuts.kept.drain(..at);
        let tick = self.cuts.kept.first().map_or(0, |c| c.tick);
        self.volumes.values_mut().for_each(|v| v.forget_cuts_before(tick));
    }

    /// Cuts seen so far.
    pub fn cuts_taken(&self) -> u64 {
        self.cuts.taken
    }

    /// True if a flush of the volume is durable in the cache only.
    pub fn writes_back(&self, id: u32) -> bool {
        self.cuts.attached && self.volumes.get(&id).is_some_and(|v| v.mode == CacheMode::WriteBack)
    }

    /// A cache is in front of the pool from now on: what is there now is what the pool holds
    /// without it.
    pub fn attach(&mut self, published: u32) {
        self.cuts.attached = true;
        self.cuts.kept.clear();
        self.cuts.published = published;
        self.keep_cut(published, published);
    }

    /// The pool has no cache any more, and all that was in it.
    pub fn detach(&mut self) {
        self.close_cache();
        self.cuts.attached = false;
        self.cuts.kept.clear();
    }

    /// The volume writes back from now on.
    fn enter_back(&mut self, id: u32) {
        let Some(image) = self.image(id) else { return };
        self.cuts.kept.iter_mut().for_each(|c| _ = c.images.insert(id, image.clone()));
    }

    /// A cache has been opened over a pool that was published up to `published`. Its image may be
    /// older by `lag` nanoseconds, if that is to be judged.
    pub fn open_cache(
        &mut self,
        published: u32,
        gauge: Gauge,
        lag: Option<u64>,
        dirty: bool,
    ) -> Result<(), String> {
        self.see_published(published)?;
        let sight = gauge();
        self.cuts.open = sight.open;
        self.cuts.gauge = Some(gauge);
        if let Some(limit) = lag {
            self.cuts.lag.open(limit, dirty, sight);
        }
        Ok(())
    }

    /// There is no cache to ask any more.
    pub fn close_cache(&mut self) {
        self.cuts.gauge = None;
        self.cuts.lag.close();
    }

    /// The settings have changed: from now on the image may be older by `limit` nanoseconds.
    pub fn change_lag(&mut self, limit: u64) {
        if let Some(sight) = self.look() {
            self.cuts.lag.change(limit, sight);
        }
    }

    /// Write-back may fail from now on.
    pub fn excuse_lag(&mut self) {
        self.cuts.lag.close();
    }

    /// Writes judged by the age of the pool's image; and the most that it was in thousandths of
    /// what was allowed.
    pub fn lag(&self) -> (u64, u64) {
        (self.cuts.lag.judged, self.cuts.lag.most)
    }

    /// After a crash: what was cut and not published never will be.
    fn see_published(&mut self, published: u32) -> Result<(), String> {
        if published < self.cuts.published {
            let before = self.cuts.published;
            return Err(format!("the pool is of epoch {published}, it was of {before} before"));
        }
        self.cuts.published = published;
        if !self.cuts.kept.iter().any(|c| c.is_of(published)) {
            return Err(format!("the pool is of epoch {published}, of which no cut was seen"));
        }
        self.cuts.kept.retain(|c| c.first <= published);
        self.forget_cuts();
        Ok(())
    }

    /// The cache is gone: the volumes that write back are as they were when epoch `published` was
    /// cut, the others as they are. False if that cannot be said.
    pub fn set_back(&mut self, published: u32) -> Result<bool, String> {
        if !self.cuts.attached {
            return Ok(true);
        }
        self.see_published(published)?;
        let ceases = |v: &Volume| v.mode == CacheMode::WriteBack && v.switching.is_some();
        if self.volumes.values().any(|v| v.mode_open || v.beyond_cut || ceases(v)) {
            return Ok(false);
        }
        let Some(cut) = self.cuts.kept.pop() else { return Ok(true) };
        for (id, v) in self.volumes.iter_mut().filter(|(_, v)| v.mode == CacheMode::WriteBack) {
            match cut.images.get(id) {
                Some(i) => v.set_back(Some(&i.blocks), i.tick, i.era),
                // The volume was made after the cut.
                None => v.set_back(None, cut.tick, 0),
            }
        }
        self.detach();
        Ok(true)
    }

    /// A switch of a volume's mode begins.
    pub fn begin_switch(&mut self, id: u32, to: CacheMode) -> u64 {
        let tick = self.tick();
        self.cuts.lag.give_up(id, 0, u64::MAX);
        if let Some(v) = self.volumes.get_mut(&id) {
            v.switching = Some(to);
        }
        tick
    }

    /// The switch that began at `from` has returned.
    pub fn end_switch(&mut self, id: u32, from: u64, ok: bool) {
        self.tick();
        let era = self.era;
        let Some(v) = self.volumes.get_mut(&id) else { return };
        let Some(to) = v.switching else { return };
        if !ok {
            v.mode_open = true;
            v.also_modes.push(to);
            return;
        }
        v.switching = None;
        v.also_modes.clear();
        v.mode = to;
        if v.mode_open {
            v.mode_open = to == CacheMode::WriteBack;
            return;
        }
        v.flushed(from, era);
        if to == CacheMode::WriteBack {
            self.enter_back(id);
        }
    }

    /// After an open: the mode is known, where it was not.
    pub(super) fn find_mode(&mut self, id: u32, found: CacheMode) -> Result<(), String> {
        let Some(v) = self.volumes.get_mut(&id) else { return Ok(()) };
        let may_be = v.may_be_in(found);
        let (before, to, also) = (v.mode, v.switching.take(), std::mem::take(&mut v.also_modes));
        if !may_be {
            return Err(format!(
                "volume {id} (of the model's numbers) should be in mode {before:?}, {to:?} or \
                 {also:?}: {found:?}"
            ));
        }
        v.mode = found;
        v.beyond_cut |= found == CacheMode::WriteBack && before == found && to.is_some();
        if found == CacheMode::WriteBack && before != found {
            self.enter_back(id);
        }
        Ok(())
    }
}
