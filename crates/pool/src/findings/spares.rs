//! Spares that have taken the place of another device by themselves. Plain data.

use model::device::{SpareTaken, SparesStatus};

/// Places that spares have taken, since the pool was opened: it is in memory alone.
#[derive(Default)]
pub(crate) struct TakenSpares {
    total: u64,
    told: Vec<SpareTaken>,
}

impl TakenSpares {
    /// A spare takes the place of a device, which no user asked for.
    pub fn count(&mut self, one: SpareTaken) {
        self.total += 1;
        self.told.push(one);
    }

    /// Another spare was added.
    pub fn spare_added(&mut self) {
        self.told.clear();
    }

    pub fn status(&self, left: usize) -> SparesStatus {
        SparesStatus { left: left as u64, taken_total: self.total, taken: self.told.clone() }
    }
}
