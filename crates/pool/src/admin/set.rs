//! Settings that change while the pool is open: the one door for that.

use base::Result;

use crate::pool::Pool;
use crate::settings::Settings;

impl Pool {
    /// Takes over settings. They hold from now on, also for the task that waits for the interval of
    /// commits to end, and for what is dirty already. Fails, and changes nothing, if one of them
    /// cannot change while a pool is open. Nothing is stored: the next open is told anew.
    pub fn set(&self, new: Settings) -> Result<()> {
        self.core().settings().check_change(&new)?;
        self.core().state().devices.set_targets(new.targets);
        self.core().state_mut().devices.set_sit_out(new.sit_out);
        self.core().replace_settings(new);
        Ok(())
    }
}
