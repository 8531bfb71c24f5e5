//! Waiting for the reads that use blocks or chunks which others want.

use crate::pool::Pool;
use crate::space::Era;

/// Freed runs that become available before other tasks get a turn.
const DRAIN: usize = 256;

impl Pool {
    /// Waits until the reads and direct writes of this era, and of those before, have ended. Makes
    /// the blocks available that waited for them.
    pub(crate) async fn wait_for_reads(&self, until: Era) {
        loop {
            let ended = self.state().space.reads_ended();
            let may_be_more = self.state_mut().space.drain(DRAIN);
            if self.state().space.has_passed(until) {
                return;
            }
            if may_be_more {
                self.rt().yield_now().await;
            } else {
                ended.await;
            }
        }
    }
}
