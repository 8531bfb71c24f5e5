//! Random: candidates stand in an array without gaps; any of them goes.

use base::Prng;

use super::links::{MAX_STEPS, NONE};

#[derive(Debug)]
pub(super) struct Random {
    candidates: Vec<u32>,
    /// The place of each bucket in `candidates`, or [`NONE`].
    place: Vec<u32>,
    prng: Prng,
}

impl Random {
    pub fn new(buckets: usize, seed: u64) -> Random {
        Random {
            candidates: Vec::with_capacity(buckets),
            place: vec![NONE; buckets],
            prng: Prng::new(seed),
        }
    }

    pub fn insert(&mut self, id: u32) {
        self.place[id as usize] = self.candidates.len() as u32;
        self.candidates.push(id);
    }

    pub fn remove(&mut self, id: u32) {
        let place = self.place[id as usize];
        self.candidates.swap_remove(place as usize);
        if let Some(&moved) = self.candidates.get(place as usize) {
            self.place[moved as usize] = place;
        }
        self.place[id as usize] = NONE;
    }

    pub fn contains(&self, id: u32) -> bool {
        self.place[id as usize] != NONE
    }

    pub fn victim(&mut self, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        for _ in 0..MAX_STEPS {
            if self.candidates.is_empty() {
                return None;
            }
            let id = self.candidates[self.prng.below(self.candidates.len() as u64) as usize];
            if may(id) {
                self.remove(id);
                return Some(id);
            }
        }
        None
    }

    pub fn len(&self) -> usize {
        self.candidates.len()
    }
}
