//! Settings that change while the cache is open: the one door for that.
//!
//! One synchronous step replaces the settings, tells the parts that have a copy, and wakes the
//! tasks that sleep by a setting. A change of a size that is fixed at the open is refused.

use base::Result;

use crate::Cache;
use crate::settings::Settings;
use crate::writeback::age_warning::watch_age;

impl Cache {
    /// Takes over settings. They hold from now on, also for a pass that sleeps, a collection that
    /// rests, and writers that wait. Fails, and changes nothing, if one of them cannot change while
    /// a cache is open. Nothing is stored: the next open is told anew.
    pub fn set(&self, mut new: Settings) -> Result<()> {
        // As at open: a small cache takes fewer.
        new.dirty_nodes = self.core().layout().dirty_nodes(new.dirty_nodes);
        self.core().settings().check_change(&new)?;
        // Parts that have a copy: they need it for every request, or have a state of their own.
        self.core().writeback().set_rates(new.writeback.clone());
        self.core().admission().set(&new);
        self.core().clients().set_cutoff(new.sequential_cutoff);
        self.core().device().queue().set_targets(new.targets);
        self.core().replace_settings(new);
        // A pass may be due now, or a cut; one that carries looks at its rate again.
        let wakes = self.core().wakes();
        for event in [&wakes.settings, &wakes.pass, &wakes.pace, &wakes.seal] {
            event.notify();
        }
        self.flows().pacer.share_device();
        watch_age(self.core());
        Ok(())
    }
}

#[cfg(test)]
#[path = "set_tests.rs"]
mod tests;
