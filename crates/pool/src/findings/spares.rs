//! Spares that have taken the place of another device by themselves. Plain data.

/// A spare that has taken the place of a device.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct SpareTaken {
    /// The path of the spare.
    pub spare: String,
    /// The device that was out of use: its path, or its uuid if it was missing.
    pub device: String,
    /// When, in seconds of Unix time; 0: not known.
    pub at: u32,
}

/// The spares of a pool.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SparesStatus {
    /// Spares that could take a place now.
    pub left: usize,
    /// How often a spare has taken a place by itself since the pool was opened.
    pub taken_total: u64,
    /// These, until a spare is added.
    pub taken: Vec<SpareTaken>,
}

/// Places that spares have taken, since the pool was opened: it is in memory alone.
#[derive(Default)]
pub(crate) struct Taken {
    total: u64,
    told: Vec<SpareTaken>,
}

impl Taken {
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
        SparesStatus { left, taken_total: self.total, taken: self.told.clone() }
    }
}
