//! Whether devices were in use all the time while something was copied to them.

use format::page::Chunk;

use crate::state::State;

/// Chunks, and how often the device of each had gone out of use by the time this was made.
pub(super) struct PresentChunks(Vec<(Chunk, u32)>);

impl PresentChunks {
    pub fn of(st: &State, chunks: Vec<Chunk>) -> PresentChunks {
        PresentChunks(chunks.into_iter().map(|c| (c, st.devices.absences(&c))).collect())
    }

    /// True if there are chunks, and all their devices have been in use since then: all that was
    /// written to them is there.
    pub fn is_still_so(&self, st: &State) -> bool {
        let stayed = |(c, absences): &(Chunk, u32)| {
            st.devices.is_live(c.device.into()) && st.devices.absences(c) == *absences
        };
        !self.0.is_empty() && self.0.iter().all(stayed)
    }
}
