//! The budget of moves, as survivors cost writes.
//!
//! Each block that comes to a bucket earns a part of a move, and each block that moves spends one.
//! What is saved is limited, and so is what is owed. While something is saved, blocks with one hit
//! survive. Without savings they need two hits, and with large debts three.

/// The moves that a hundred new blocks earn.
const RATE: i64 = 28;
/// At most this part of the cache is saved. Debts of more than this part are large.
const LIMIT: i64 = 8;

#[derive(Debug)]
pub(super) struct Budget {
    /// In hundredths of a block.
    saved: i64,
    limit: i64,
}

impl Budget {
    pub fn new(blocks: u64) -> Budget {
        Budget { saved: 0, limit: blocks as i64 * 100 / LIMIT }
    }

    /// Earns moves: a bucket of `blocks` blocks is to be filled.
    pub fn earn(&mut self, blocks: u32) {
        self.saved = (self.saved + RATE * i64::from(blocks)).min(self.limit);
    }

    /// Spends the moves of `blocks` blocks. They fill buckets too, but earn nothing by that.
    pub fn spend(&mut self, blocks: u32) {
        self.saved = (self.saved - (100 + RATE) * i64::from(blocks)).max(-2 * self.limit);
    }

    /// The hits that a block needs to survive, for the first time.
    pub fn least_hits(&self) -> u8 {
        match self.saved {
            1.. => 1,
            saved if saved > -self.limit => 2,
            _ => 3,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_a_quarter_of_what_comes_may_move_with_one_hit() {
        let mut budget = Budget::new(128 * 1000);
        assert_eq!(budget.least_hits(), 2);
        let (mut filled, mut moved) = (0, 0);
        for _ in 0..100_000 {
            budget.earn(128);
            filled += 128;
            if budget.least_hits() == 1 {
                budget.spend(64);
                moved += 64;
            }
        }
        let share = moved * 100 / (filled - moved);
        assert!((27..=29).contains(&share), "{share}");
    }

    #[test]
    fn what_is_saved_and_owed_is_limited() {
        let mut budget = Budget::new(128 * 80);
        (0..1000).for_each(|_| budget.earn(128));
        assert_eq!(budget.least_hits(), 1);
        // A tenth of the cache was saved.
        (0..8).for_each(|_| budget.spend(128));
        assert_eq!(budget.least_hits(), 2);
        (0..1000).for_each(|_| budget.spend(128));
        assert_eq!(budget.least_hits(), 3);
        (0..80).for_each(|_| budget.earn(128));
        assert_eq!(budget.least_hits(), 1);
    }
}
