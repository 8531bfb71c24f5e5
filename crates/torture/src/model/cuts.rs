//! Cuts: what the pool alone holds when its cache is gone.
//!
//! The engine takes a cut when it likes, by opening the next epoch. The model asks for the open epoch at every tick, before anything begins or ends: a
//! new one says that the cut was taken since the tick before, between two events of which the model knows. So what a cut holds is exact: all that had been
//! answered, nothing that had not begun, and what was under way or not. Its image is kept until a newer cut is published.
//!
//! The pool names the epoch that it holds. It must be that of a cut which was taken, and none before the last that was seen published; then all
//! volumes must hold what they held then, which no mixture of two moments does.
//!
//! Volumes are made, resized and deleted at once, whatever the cut: the image is of those that are there, as long as they are, and what a shrink gave up
//! is gone.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::Model;
use super::volume::Blocks;

/// What the engine says: the open epoch, the published one.
pub(crate) type Gauge = Box<dyn Fn() -> (u32, u32)>;

/// A moment at which a cut, or several in a row, were taken.
struct Cut {
    /// The epochs that were closed.
    first: u32,
    last: u32,
    tick: u64,
    era: u32,
    images: BTreeMap<u32, Rc<Blocks>>,
}

impl Cut {
    fn is_of(&self, epoch: u32) -> bool {
        (self.first..=self.last).contains(&epoch)
    }
}

#[derive(Default)]
pub(crate) struct Cuts {
    gauge: Option<Gauge>,
    open: u32,
    published: u32,
    /// The last published, and what came after it.
    kept: Vec<Cut>,
    taken: u64,
}

impl Model {
    /// Notes a cut if there was one.
    pub fn look(&mut self) {
        let Some((open, published)) = self.cuts.gauge.as_ref().map(|g| g()) else { return };
        if open > self.cuts.open {
            let first = std::mem::replace(&mut self.cuts.open, open);
            self.keep_cut(first, open - 1);
        }
        if published > self.cuts.published {
            self.cuts.published = published;
            self.forget_cuts();
        }
    }

    fn keep_cut(&mut self, first: u32, last: u32) {
        let images = self.volumes.iter().map(|(id, v)| (*id, v.image())).collect();
        self.cuts.kept.push(Cut { first, last, tick: self.tick, era: self.era, images });
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

    /// A cache is about to be attached: what is there now is what the pool holds without it.
    pub fn attach(&mut self, published: u32) {
        self.cuts.kept.clear();
        self.cuts.published = published;
        self.keep_cut(published, published);
    }

    /// A cache has been opened over a pool that was published up to `published`.
    pub fn open_cache(&mut self, published: u32, gauge: Gauge) -> Result<(), String> {
        self.see_published(published)?;
        self.cuts.open = gauge().0;
        self.cuts.gauge = Some(gauge);
        Ok(())
    }

    /// The boot is over: there is nobody to ask any more.
    pub fn close_cache(&mut self) {
        self.cuts.gauge = None;
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

    /// The cache is gone: the volumes are as they were when epoch `published` was cut.
    pub fn set_back(&mut self, published: u32) -> Result<(), String> {
        self.see_published(published)?;
        let Some(cut) = self.cuts.kept.pop() else { return Ok(()) };
        for (id, v) in &mut self.volumes {
            v.set_back(cut.images.get(id).map(|i| &**i), cut.tick, cut.era);
        }
        self.cuts.kept.clear();
        Ok(())
    }
}
