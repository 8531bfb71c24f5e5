//! The passes of an open cache: one runs at a time, and what stays between them is changed by the
//! flows of this folder alone.

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use base::Result;
use rt::sync::{OneShot, OneShotSender, Permit, Semaphore, oneshot};

use super::drain_gate::DrainGate;
use super::margin::Margin;
use super::pass_state::Passes;
use crate::policy::rate_controller;
use crate::settings::Settings;

/// See the [module](self).
pub(crate) struct WriteBack {
    passes: RefCell<Passes>,
    /// Held by a pass, and by what must not meet one (a volume's end).
    lock: Semaphore,
    margin: Margin,
    /// The gate through which changes come in that passes are to carry.
    gate: Rc<DrainGate>,
    /// Tasks that wait until everything is published; `None`: no pass runs any more.
    asked: RefCell<Option<Vec<OneShotSender<Result<()>>>>>,
}

/// While this exists the task of write-back answers those that ask for passes.
pub(super) struct AnswerGuard<'w>(&'w WriteBack);

impl Drop for AnswerGuard<'_> {
    fn drop(&mut self) {
        self.0.asked.take();
    }
}

/// A flow waits until everything is published: passes are not paced until this is dropped.
pub(crate) struct UrgencyGuard<'w>(&'w WriteBack);

impl Drop for UrgencyGuard<'_> {
    fn drop(&mut self) {
        self.0.passes_mut().set_urgent(false);
    }
}

/// While this exists a pass carries its cut.
pub(super) struct PassGuard<'w>(&'w WriteBack);

impl Drop for PassGuard<'_> {
    fn drop(&mut self) {
        self.0.passes_mut().cuts_mut().set_passing(false);
    }
}

/// While this exists no cut is taken, except one that a pass needs.
pub(super) struct CutHold<'w>(&'w WriteBack);

impl Drop for CutHold<'_> {
    fn drop(&mut self) {
        self.0.passes_mut().cuts_mut().let_back();
    }
}

impl WriteBack {
    /// No pass has run.
    pub fn new(settings: &Settings) -> WriteBack {
        WriteBack {
            passes: RefCell::new(Passes::new(settings)),
            lock: Semaphore::new(1),
            margin: Margin::default(),
            gate: Rc::new(DrainGate::new()),
            asked: RefCell::new(Some(Vec::new())),
        }
    }

    /// The state that stays between passes.
    pub fn passes(&self) -> Ref<'_, Passes> {
        self.passes.borrow()
    }

    /// The same, to change it.
    pub(crate) fn passes_mut(&self) -> RefMut<'_, Passes> {
        self.passes.borrow_mut()
    }

    /// Nodes that are reserved for what a pass keeps.
    pub(super) fn margin(&self) -> &Margin {
        &self.margin
    }

    /// The gate through which changes come in that passes are to carry.
    pub fn gate(&self) -> &Rc<DrainGate> {
        &self.gate
    }

    /// Asks the task of write-back to publish everything, and waits for the outcome. The caller
    /// then [wakes](crate::wakes::WakeEvents) the task. `None`: no pass runs any more.
    pub fn ask_to_publish(&self) -> Option<OneShot<Result<()>>> {
        let (tx, rx) = oneshot();
        self.asked.borrow_mut().as_mut()?.push(tx);
        Some(rx)
    }

    /// True if a task waits until everything is published.
    pub(super) fn is_asked(&self) -> bool {
        self.asked.borrow().as_ref().is_some_and(|asked| !asked.is_empty())
    }

    /// Tells the tasks that have asked by now the outcome of `publish`.
    pub(super) async fn answer(&self, publish: impl Future<Output = Result<()>>) {
        let asked = self.asked.borrow_mut().as_mut().map(std::mem::take).unwrap_or_default();
        let outcome = publish.await;
        asked.into_iter().for_each(|task| task.send(outcome.clone()));
    }

    /// The task of write-back answers tasks until the guard is dropped. From then on nothing can be
    /// asked.
    pub(super) fn answers(&self) -> AnswerGuard<'_> {
        AnswerGuard(self)
    }

    /// Waits for the end of the running pass; none begins while the permit is held.
    pub fn lock(&self) -> impl Future<Output = Permit> {
        self.lock.acquire(1)
    }

    /// From now on these rates hold, also for a pass that runs.
    pub fn set_rates(&self, rates: rate_controller::RateSettings) {
        self.passes_mut().set_rates(rates);
    }

    /// Passes are not paced until the guard is dropped.
    pub(super) fn urgent(&self) -> UrgencyGuard<'_> {
        self.passes_mut().set_urgent(true);
        UrgencyGuard(self)
    }

    /// A pass carries its cut until the guard is dropped.
    pub(super) fn passing(&self) -> PassGuard<'_> {
        self.passes_mut().cuts_mut().set_passing(true);
        PassGuard(self)
    }

    /// No cut is taken until the guard is dropped, except one that a pass needs.
    pub(super) fn keep_cuts_away(&self) -> CutHold<'_> {
        self.passes_mut().cuts_mut().keep_away();
        CutHold(self)
    }

    /// The cache ends. The room of its cuts in the pool stays reserved.
    pub fn keep_room(&mut self) {
        self.passes.get_mut().cuts_mut().keep_room();
    }
}
