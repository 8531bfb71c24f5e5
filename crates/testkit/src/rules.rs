//! A backend whose answers a test may replace by errors.

use std::cell::RefCell;
use std::rc::Rc;

use base::{Instant, IoError};
use rt::{Backend, Completion, FileId, Op, OpId, Payload};

type Rule = Box<dyn Fn(&Op) -> Option<(IoError, Effect)>>;

/// Whether an operation that is answered by an error is done all the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The device does it, and says that it did not.
    Yes,
    /// The device does not see it.
    No,
}

/// The rule in force, if any. Clones are the same.
#[derive(Clone, Default)]
pub struct Rules(Rc<RefCell<Option<Rule>>>);

impl Rules {
    /// Sets the rule. It is asked about each operation: it gives the error that answers it, if any.
    pub fn set(&self, rule: impl Fn(&Op) -> Option<(IoError, Effect)> + 'static) {
        *self.0.borrow_mut() = Some(Box::new(rule));
    }

    /// Ends the rule.
    pub fn clear(&self) {
        *self.0.borrow_mut() = None;
    }

    /// A backend over `inner` that obeys the rule in force.
    pub fn over(&self, inner: Box<dyn Backend>) -> Box<dyn Backend> {
        Box::new(RuledBackend { inner, rules: self.clone(), refused: Vec::new(), told: Vec::new() })
    }
}

struct RuledBackend {
    inner: Box<dyn Backend>,
    rules: Rules,
    refused: Vec<Completion>,
    told: Vec<(OpId, IoError)>,
}

impl Backend for RuledBackend {
    fn submit(&mut self, id: OpId, op: Op) {
        let verdict = self.rules.0.borrow().as_ref().and_then(|rule| rule(&op));
        match verdict {
            None => self.inner.submit(id, op),
            Some((e, Effect::Yes)) => {
                self.told.push((id, e));
                self.inner.submit(id, op);
            }
            Some((e, Effect::No)) => {
                let payload = match op {
                    Op::Read { bufs, .. } => Payload::Bufs(bufs),
                    Op::Write { data, .. } => Payload::Data(data),
                    _ => Payload::None,
                };
                self.refused.push(Completion { id, result: Err(e), payload });
            }
        }
    }

    fn wait(&mut self, until: Option<Instant>, done: &mut Vec<Completion>) -> Instant {
        let from = done.len();
        let now = self.inner.now();
        done.append(&mut self.refused);
        let now = self.inner.wait(if done.len() > from { Some(now) } else { until }, done);
        for c in &mut done[from..] {
            if let Some(at) = self.told.iter().position(|(id, _)| *id == c.id) {
                c.result = Err(self.told.swap_remove(at).1);
            }
        }
        now
    }

    fn now(&self) -> Instant {
        self.inner.now()
    }
}

/// True for a write to `file`.
pub fn writes_to(op: &Op, file: FileId) -> bool {
    matches!(op, Op::Write { file: f, .. } if *f == file)
}

/// True for a write of a superblock.
pub fn is_superblock(op: &Op) -> bool {
    matches!(op, Op::Write { fua: true, .. })
}
