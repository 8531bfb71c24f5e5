//! The schedule of scrubs: when the next one begins by itself.

use crate::findings::ScrubOptions;
use crate::scrub::scrub_flow::Scrubber;

/// True at a time of day, minutes after midnight, and for an hour after it: the server may be busy
/// or away at that moment.
fn is_time(unix_seconds: u32, at: Option<u16>) -> bool {
    const DAY: u32 = 86_400;
    let since = |at: u16| (unix_seconds % DAY + DAY - u32::from(at) * 60) % DAY;
    at.is_none_or(|at| since(at) < 3600)
}

impl Scrubber {
    /// Starts a scrub if none of all devices was complete for the time that is set; after one that
    /// was cancelled, not within a day. Without a clock none is ever due. The first one comes after
    /// half to all of that time, by the uuid of the pool, so that pools that were made together are
    /// not scrubbed together.
    pub(super) async fn start_when_due(&self) {
        let (now, every) =
            (self.core.unix_time(self.core.now()), self.core.settings().scrub_every.as_secs());
        let at = self.core.settings().scrub_at;
        if now == 0 || self.core.permit().is_err() {
            return;
        }
        {
            let mut st = self.core.state_mut();
            let was_ahead = st.scrub.forget_future(now);
            if was_ahead {
                tracing::warn!(
                    "the clock was ahead when a scrub ended, or is behind now: the time to the \
                     next scrub counts from now"
                );
            }
            if st.scrub.note_paused(now) || was_ahead {
                st.note_in_superblock();
            }
        }
        if every == 0 {
            return;
        }
        let since = self.core.state().scrub.since();
        if since == 0 {
            let part = u64::from(self.core.uuid()[0]) * every / 512;
            let mut st = self.core.state_mut();
            st.scrub.begin_counting((u64::from(now) - part.min(u64::from(now) - 1)) as u32);
            st.note_in_superblock();
            return;
        }
        let is_due = {
            let st = self.core.state();
            st.scrub.is_due(now.into(), every, st.devices.degraded())
        };
        if is_due && is_time(now, at) {
            match self.scrubs.start_scrub(ScrubOptions::default()).await {
                Ok(()) => tracing::info!("a scrub begins, as scrub.every says"),
                Err(e) => tracing::warn!("a scrub that is due could not begin: {e}"),
            }
        }
    }
}
