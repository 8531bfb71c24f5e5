//! Loading of what blocks are verified by.

use std::rc::Rc;

use base::Result;
use queue::Class;

use super::window::Stop;
use crate::core::Core;
use crate::transfer::copies::CopyReader;
use crate::transfer::load::NodeLoader;
use crate::transfer::walk::Walk;

/// Leaves of a checksum tree that are read ahead at once.
const AHEAD: usize = 16;

/// Loads what a scrub verifies blocks by.
pub(crate) struct ScrubLoader {
    core: Core,
    copies: Rc<CopyReader>,
    loader: Rc<NodeLoader>,
}

impl ScrubLoader {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(
        core: &Core,
        copies: &Rc<CopyReader>,
        loader: &Rc<NodeLoader>,
    ) -> Rc<ScrubLoader> {
        Rc::new(ScrubLoader { core: core.clone(), copies: copies.clone(), loader: loader.clone() })
    }

    /// Loads what a scrub needs to verify blocks: their checksums, or bitmaps. The inner error:
    /// that is bad, and not only out of reach. Then what depends on it is passed over, and counted
    /// as lost, so the scrub does not report that all is well. The outer error: the pool has
    /// failed, or a device answered nothing. Then the scrub tries again later.
    pub(super) async fn surely<T>(
        &self,
        mut load: impl AsyncFnMut() -> Result<T>,
    ) -> std::result::Result<Result<T>, Stop> {
        if let Ok(loaded) = load().await {
            return Ok(Ok(loaded));
        }
        // A failed read counts only if the data cannot be read between two answers of the devices.
        self.core.permit()?;
        self.copies.all_answer(Class::Scrub).await?;
        let outcome = load().await;
        if outcome.is_err() {
            self.core.permit()?;
            self.copies.all_answer(Class::Scrub).await?;
        }
        Ok(outcome)
    }

    /// Brings the next leaves into memory, several at once. A leaf that cannot be read is reported
    /// by the step that needs it.
    pub(crate) async fn read_leaves(&self, walk: &Walk) {
        let (missing, pin) = {
            let st = self.core.state();
            (walk.ahead(&st, AHEAD), st.space.limbo().pin())
        };
        self.loader.load_nodes(Class::Scrub, self.loader.pin_nodes(missing, pin), false).await;
    }
}
