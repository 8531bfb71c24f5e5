//! The blocks that a write holds until the trees have them. They are a value that gives them back
//! when it is dropped, as is the room for the nodes that the write will change
//! ([`NodeRoom`](crate::space::NodeRoom)). So a write may be given up at any moment.
//!
//! One thing cannot be taken back: a write that a device has been asked for. A transfer that is
//! dropped goes on in a task of its own, and its blocks are given back when it has ended
//! ([`RunWriter::write_taken`]).

use std::ops::Deref;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use base::{Result, SliceList};
use queue::Class;
use rt::Rt;
use smallvec::SmallVec;

use crate::core::Core;
use crate::space::{Pin as ReadPin, Run};
use crate::transfer::write_copies::CopyWriter;
use crate::txn::Kind;

/// Blocks that were taken to be written. They are free again when this is dropped, unless they were
/// [entered](TakenRuns::entered).
#[must_use = "the blocks are given back when this is dropped"]
pub(crate) struct TakenRuns {
    core: Core,
    kind: Kind,
    runs: SmallVec<[Run; 1]>,
    /// While they are written. A device that comes back waits for the writes of which it gets
    /// nothing, and a chunk that was moved is not used again before writes to it have ended.
    pin: Option<ReadPin>,
}

impl TakenRuns {
    /// No blocks.
    pub fn none(core: &Core, kind: Kind) -> TakenRuns {
        TakenRuns { core: core.clone(), kind, runs: SmallVec::new(), pin: None }
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u32 {
        self.runs.iter().map(|run| run.len).sum()
    }

    /// Adds a run that was allocated just now.
    pub(super) fn push(&mut self, run: Run) {
        if self.kind == Kind::Direct {
            self.core.state_mut().space.takers_mut().begin_writing(run);
        }
        self.runs.push(run);
    }

    /// The trees have them from now on.
    pub fn entered(mut self) {
        let runs = std::mem::take(&mut self.runs);
        if self.kind == Kind::Direct {
            self.core.state_mut().space.takers_mut().end_writing(&runs);
        }
    }
}

impl Deref for TakenRuns {
    type Target = [Run];

    fn deref(&self) -> &[Run] {
        &self.runs
    }
}

impl Drop for TakenRuns {
    fn drop(&mut self) {
        if self.runs.is_empty() {
            return;
        }
        let mut st = self.core.state_mut();
        if self.kind == Kind::Direct {
            st.space.takers_mut().end_writing(&self.runs);
        }
        self.runs.iter().for_each(|&run| st.space.release(run));
    }
}

/// Writes data to blocks that were taken for it.
pub(crate) struct RunWriter {
    core: Core,
    copy_writer: Rc<CopyWriter>,
}

impl RunWriter {
    /// Makes the flow out of the core and the flows that it calls.
    pub(crate) fn new(core: &Core, copy_writer: &Rc<CopyWriter>) -> Rc<RunWriter> {
        Rc::new(RunWriter { core: core.clone(), copy_writer: copy_writer.clone() })
    }

    /// Writes all copies of `data` to the blocks that were taken for it. After an error, and if the
    /// future is dropped, they are given back as soon as no device is writing them.
    pub(crate) fn write_taken(
        self: &Rc<Self>,
        mut taken: TakenRuns,
        data: SliceList,
        class: Class,
    ) -> impl Future<Output = Result<TakenRuns>> + use<> {
        let this = self.clone();
        let write = async move {
            taken.pin = Some(this.core.state().space.limbo().pin_none());
            this.copy_writer.write_runs(&taken, data, class).await?;
            Ok(taken)
        };
        DetachOnDrop { rt: self.core.rt().clone(), future: Some(Box::pin(write)), began: false }
    }
}

/// A future that goes on in a task of its own when it is dropped after it has begun.
struct DetachOnDrop<F: Future + 'static> {
    rt: Rt,
    future: Option<Pin<Box<F>>>,
    began: bool,
}

impl<F: Future + 'static> Future for DetachOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.began = true;
        let Some(future) = &mut self.future else { unreachable!("it has ended") };
        let output = ready!(future.as_mut().poll(cx));
        self.future = None;
        Poll::Ready(output)
    }
}

impl<F: Future + 'static> Drop for DetachOnDrop<F> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take().filter(|_| self.began) {
            self.rt.detach(async move { drop(future.await) });
        }
    }
}
