//! Memory of the simulated host: the death of a process leaves it, a power cut takes it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use base::{HOST_MEMORY_MAX, HostMemory, HostMemoryId, HostPlace, IoError};

type Bytes = Rc<RefCell<Vec<u8>>>;

/// The memory of a host; clones are the same.
#[derive(Clone, Default)]
pub struct Host(Rc<Memories>);

struct Memories {
    all: RefCell<BTreeMap<([u8; 16], HostMemoryId), Bytes>>,
    /// Bytes that each of them may have.
    most: Cell<usize>,
}

impl Default for Memories {
    fn default() -> Memories {
        Memories { all: RefCell::default(), most: Cell::new(HOST_MEMORY_MAX) }
    }
}

impl Host {
    /// From now on each memory may have so many bytes at most.
    pub fn limit(&self, bytes: usize) {
        self.0.most.set(bytes);
    }

    /// The number of memories.
    pub fn count(&self) -> usize {
        self.0.all.borrow().len()
    }

    /// Power is cut. What a process of before still holds is no memory of the host any more.
    pub fn lose_all(&self) {
        self.0.all.borrow_mut().clear();
    }
}

impl HostPlace for Host {
    fn find(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Option<Vec<u8>>, IoError> {
        Ok(self.0.all.borrow().get(&(owner, id)).map(|bytes| bytes.borrow().clone()))
    }

    fn create(&self, owner: [u8; 16], id: HostMemoryId) -> Result<Box<dyn HostMemory>, IoError> {
        let bytes = Bytes::default();
        self.0.all.borrow_mut().insert((owner, id), bytes.clone());
        Ok(Box::new(Memory { host: self.clone(), bytes }))
    }

    fn remove_others(&self, owner: [u8; 16], keep: Option<HostMemoryId>) {
        let stays = |&(of, id): &([u8; 16], HostMemoryId)| of != owner || keep == Some(id);
        self.0.all.borrow_mut().retain(|key, _| stays(key));
    }

    fn name(&self) -> String {
        "the memory of the simulated host".into()
    }
}

struct Memory {
    host: Host,
    bytes: Bytes,
}

impl HostMemory for Memory {
    fn backed(&self) -> usize {
        self.bytes.borrow().len()
    }

    fn back(&mut self, bytes: usize) -> Result<(), IoError> {
        if bytes > self.host.0.most.get() {
            return Err(IoError::NO_SPACE);
        }
        let mut all = self.bytes.borrow_mut();
        let len = all.len().max(bytes);
        all.resize(len, 0);
        Ok(())
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn publish(&mut self, at: usize, value: u64) {
        self.write(at, &value.to_le_bytes());
    }
}
