//! What blocks may hold after a crash.

use std::cell::RefCell;
use std::fmt::Display;
use std::rc::Rc;

/// For each block of a volume the numbers that it may hold: the first is durable, and the others
/// were written since. Clones are the same.
#[derive(Clone)]
pub struct Model(Rc<RefCell<Vec<Vec<u64>>>>);

impl Model {
    /// A volume of `blocks` blocks that nothing was written to.
    pub fn new(blocks: u64) -> Model {
        Model(Rc::new(RefCell::new(vec![vec![0]; blocks as usize])))
    }

    /// Notes that a write of `value` to a block begins.
    pub fn issue(&self, at: u64, value: u64) {
        self.0.borrow_mut()[at as usize].push(value);
    }

    /// The number that was written last to a block.
    pub fn last(&self, at: u64) -> u64 {
        *self.0.borrow()[at as usize].last().expect("never empty")
    }

    /// How many numbers the blocks from `from` to `to` may hold. A test takes this before it
    /// flushes, and gives it to [`Model::flushed`].
    pub fn issued(&self, (from, to): (u64, u64)) -> Vec<usize> {
        self.0.borrow()[from as usize..to as usize].iter().map(Vec::len).collect()
    }

    /// Notes that what was `issued` to the blocks from `from` on is durable: nothing older may come
    /// back.
    pub fn flushed(&self, from: u64, issued: &[usize]) {
        for (may, n) in self.0.borrow_mut()[from as usize..].iter_mut().zip(issued) {
            may.drain(..n - 1);
        }
    }

    /// Asserts that a block may hold the `value` that was found after a crash. From then on it
    /// holds that one.
    pub fn found(&self, at: u64, value: u64, boot: impl Display) {
        let may = &mut self.0.borrow_mut()[at as usize];
        assert!(may.contains(&value), "{boot} block {at}: {value}, may be {may:?}");
        *may = vec![value];
    }
}
