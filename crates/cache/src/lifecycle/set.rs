//! Settings that change while the cache is open: the one door for that.

use base::Result;

use crate::Cache;
use crate::settings::Settings;

impl Cache {
    /// Takes over settings. They hold from now on, also for a pass that sleeps, a collection that
    /// rests, and writers that wait. Fails, and changes nothing, if one of them cannot change while
    /// a cache is open. Nothing is stored: the next open is told anew.
    pub fn set(&self, mut new: Settings) -> Result<()> {
        // As at open: a small cache takes fewer.
        new.dirty_nodes = self.0.layout.dirty_nodes(new.dirty_nodes);
        self.settings().check_change(&new)?;
        // Copies of what is looked at for every request, or has a state of its own.
        self.0.passes.borrow_mut().set_rates(new.writeback.clone());
        self.0.admission.set(&new);
        self.0.read.set_cutoff(new.sequential_cutoff);
        self.0.written.set_cutoff(new.sequential_cutoff);
        self.0.device.set_targets(new.targets);
        self.0.settings.replace(new);
        // A pass may be due now, or a cut; one that carries looks at its rate again.
        let wakes = &self.0.wakes;
        for event in [&wakes.settings, &wakes.pass, &wakes.pace, &wakes.seal] {
            event.notify();
        }
        self.share_device();
        self.watch_age();
        Ok(())
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
