//! Questions about all groups, which are worked on in slices ([`Fit`]).

use base::Result;

use crate::moves::admit::MoveTerms;
use crate::space::{Fit, Terms};
use crate::state::State;

impl MoveTerms {
    /// Asks whether everything finds room, and does `then` with the answer in the step in which it
    /// is found. `ask` says what is asked, as of each step before too; its error ends this.
    pub(crate) async fn ask<T>(
        &self,
        ask: impl Fn(&State) -> Result<Vec<Terms>>,
        then: impl FnOnce(&mut State, Fit) -> Result<T>,
    ) -> Result<T> {
        let mut fit = Fit::default();
        loop {
            {
                let mut st = self.core.state_mut();
                let asked = ask(&st)?;
                if fit.go_on(st.space.groups(), asked) {
                    return then(&mut st, fit);
                }
            }
            self.core.rt().yield_now().await;
        }
    }
}
