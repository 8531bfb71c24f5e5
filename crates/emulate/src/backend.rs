//! The backend that wraps another one.
//!
//! An operation on a file that is emulated goes to the file's model. When the model has done it, it
//! goes to the backend below, and completes with the outcome of that. So the bytes are moved when
//! the emulated device would have moved them, one request after the other: a file in memory is
//! copied by the thread that submits, and hundreds of requests at once would hold the engine up for
//! milliseconds. [`Backend::wait`] waits below no longer than until the next request of a model is
//! done. The clock is the one of the backend below, be it virtual or not.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use base::Instant;
use rt::{Backend, Completion, DeviceKind, FileId, Op, OpId, ThreadTime};

use crate::model::{Emulate, Emulation};
use crate::request::{Access, Ticket};

/// Which files of a backend are emulated. Clones are the same list: one is kept for adding files.
#[derive(Clone, Default)]
pub struct Emulations(Rc<RefCell<BTreeMap<FileId, EmulatedFile>>>);

/// A file that is emulated.
struct EmulatedFile {
    model: Emulation,
    kind: DeviceKind,
    /// The operations that the model has not done.
    in_service: BTreeMap<Ticket, (OpId, Op)>,
}

impl Emulations {
    /// From now on `file`, which has no operation in flight, is as slow as a device of another kind
    /// with `size_bytes`.
    pub fn add(&self, file: FileId, what: Emulate, size_bytes: u64) {
        let kind = match what {
            Emulate::Hdd => DeviceKind::Rotating,
            Emulate::Ssd => DeviceKind::Ssd,
        };
        let model = Emulation::new(what, size_bytes);
        let emulated = EmulatedFile { model, kind, in_service: BTreeMap::new() };
        self.0.borrow_mut().insert(file, emulated);
    }

    /// The backend `below`, with these files as slow as they are to be.
    pub fn over(&self, below: Box<dyn Backend>) -> Box<dyn Backend> {
        let now = below.now();
        Box::new(EmulatingBackend { below, files: self.clone(), now, served: Vec::new() })
    }
}

struct EmulatingBackend {
    below: Box<dyn Backend>,
    files: Emulations,
    /// The time that the last wait gave. A model's time never goes back.
    now: Instant,
    /// Empty but in [`EmulatingBackend::pass_on`].
    served: Vec<Ticket>,
}

impl EmulatingBackend {
    /// When a model will have done a request next.
    fn next_at(&self) -> Option<Instant> {
        self.files.0.borrow().values().filter_map(|f| f.model.next_at()).min()
    }

    /// Hands what the models have done to the backend below.
    fn pass_on(&mut self) {
        for file in self.files.0.borrow_mut().values_mut() {
            file.model.take_done(self.now, &mut self.served);
            for ticket in self.served.drain(..) {
                let Some((id, op)) = file.in_service.remove(&ticket) else {
                    unreachable!("a ticket is served once")
                };
                self.below.submit(id, op);
            }
        }
    }
}

impl Backend for EmulatingBackend {
    fn submit(&mut self, id: OpId, op: Op) {
        if let Some((file, access, offset, len)) = request_of(&op)
            && let Some(file) = self.files.0.borrow_mut().get_mut(&file)
        {
            let ticket = file.model.submit(self.now, access, offset, len);
            file.in_service.insert(ticket, (id, op));
        } else {
            self.below.submit(id, op);
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        let before = done.len();
        loop {
            let next = self.next_at();
            self.now = self.below.wait(until.into_iter().chain(next).min(), done);
            self.pass_on();
            if done.len() > before || until.is_some_and(|until| until <= self.now) {
                return self.now;
            }
        }
    }

    fn kind(&self, file: FileId) -> DeviceKind {
        match self.files.0.borrow().get(&file) {
            Some(emulated) => emulated.kind,
            None => self.below.kind(file),
        }
    }

    fn ran(&self) -> Option<ThreadTime> {
        self.below.ran()
    }

    fn now(&self) -> Instant {
        self.below.now()
    }
}

/// The file, the access, the place and the length of an operation, for a model. A model is told
/// nothing of discards, and of what is no file's.
fn request_of(op: &Op) -> Option<(FileId, Access, u64, usize)> {
    match op {
        Op::Read { file, offset, bufs } => {
            Some((*file, Access::Read, *offset, bufs.iter().map(|b| b.len()).sum()))
        }
        Op::Write { file, offset, data, fua } => {
            let access = if *fua { Access::DurableWrite } else { Access::Write };
            Some((*file, access, *offset, data.iter().map(|s| s.len()).sum()))
        }
        Op::Flush { file } => Some((*file, Access::Flush, 0, 0)),
        Op::Discard { .. }
        | Op::Recv { .. }
        | Op::Send { .. }
        | Op::Accept { .. }
        | Op::Close { .. } => None,
    }
}
