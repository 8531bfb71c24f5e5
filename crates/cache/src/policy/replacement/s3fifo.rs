//! S3-FIFO without ghosts: buckets enter a queue on trial; what was read more than once there moves
//! on to the main queue, the rest goes. In the main queue, the oldest goes round again for each
//! read it has had, at most three.
//!
//! The trial queue holds half of the candidates, not a tenth: without ghosts it is the only chance
//! a bucket has to be read again (docs/decisions/0007-replacement.md).

use super::links::{Links, MAX_STEPS, NONE, Queue};

/// Read hits since it was inserted or looked at, at most 3; kept also while the bucket is no
/// candidate yet.
const READS: u8 = 3;
const TRIAL: u8 = 4;
const MAIN: u8 = 8;

#[derive(Debug)]
pub(super) struct S3Fifo {
    links: Links,
    trial: Queue,
    main: Queue,
    flags: Vec<u8>,
}

impl S3Fifo {
    pub fn new(buckets: usize) -> S3Fifo {
        S3Fifo {
            links: Links::new(buckets),
            trial: Queue::new(),
            main: Queue::new(),
            flags: vec![0; buckets],
        }
    }

    pub fn insert(&mut self, id: u32) {
        self.trial.push(&mut self.links, id);
        self.flags[id as usize] |= TRIAL;
    }

    pub fn remove(&mut self, id: u32) {
        let flags = std::mem::take(&mut self.flags[id as usize]);
        let queue = if flags & TRIAL != 0 { &mut self.trial } else { &mut self.main };
        queue.unlink(&mut self.links, id);
    }

    pub fn contains(&self, id: u32) -> bool {
        self.flags[id as usize] & (TRIAL | MAIN) != 0
    }

    pub fn touch(&mut self, id: u32) {
        let flags = &mut self.flags[id as usize];
        *flags += u8::from(*flags & READS != READS);
    }

    pub fn victim(&mut self, mut may: impl FnMut(u32) -> bool) -> Option<u32> {
        let mut spared = None;
        let mut main_is_pinned = false;
        for _ in 0..MAX_STEPS {
            let on_trial = self.trial.len() > 0
                && (self.trial.len() * 2 > self.len() || self.main.len() == 0 || main_is_pinned);
            let id = if on_trial { self.trial.oldest() } else { self.main.oldest() };
            if id == NONE {
                break;
            }
            let reads = self.flags[id as usize] & READS;
            let proved = if on_trial { reads > 1 } else { reads > 0 };
            if !proved || spared.is_none() {
                let goes = may(id);
                if goes && !proved {
                    self.remove(id);
                    return Some(id);
                }
                if goes {
                    spared = Some(id);
                }
                // Else a few buckets in the trial queue would never be looked at.
                main_is_pinned |= !goes && !on_trial;
            }
            // Spared, or pinned, which is being read: to the main queue's end.
            self.remove(id);
            self.main.push(&mut self.links, id);
            self.flags[id as usize] = MAIN | if on_trial { 0 } else { reads.saturating_sub(1) };
        }
        let id = spared?;
        self.remove(id);
        Some(id)
    }

    pub fn len(&self) -> usize {
        self.trial.len() + self.main.len()
    }
}
