//! Problems come and go in the log, too: who reads the journal alone hears of them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base::Duration;
use model::Status;
use model::health::Problem;
use rt::Rt;

/// The time between two looks at the state.
const LOOK: Duration = Duration::from_secs(5);

/// The number of problems for each page of docs/operations.md.
#[derive(Default)]
struct KnownProblems(BTreeMap<Cow<'static, str>, usize>);

impl KnownProblems {
    /// Takes note of all problems that there are now: those that are new, and pages that are over.
    /// What a problem says may have figures that change, so it is told by its page alone.
    fn look<'a>(&mut self, problems: &'a [Problem]) -> (Vec<&'a Problem>, Vec<Cow<'static, str>>) {
        let mut now: BTreeMap<Cow<'static, str>, usize> = BTreeMap::new();
        let mut new = Vec::new();
        for problem in problems {
            let page = &problem.page;
            let count = now.entry(page.clone()).or_default();
            *count += 1;
            if *count > self.0.get(page).copied().unwrap_or(0) {
                new.push(problem);
            }
        }
        let over = self.0.keys().filter(|page| !now.contains_key(*page)).cloned().collect();
        self.0 = now;
        (new, over)
    }
}

/// Logs problems as they come and go, for as long as there is a status.
pub(super) fn log_problems(rt: &Rt, status: impl Fn() -> Option<Status> + 'static) {
    let rt = rt.clone();
    rt.clone().detach(async move {
        let mut known = KnownProblems::default();
        while let Some(status) = status() {
            let (new, over) = known.look(&status.health);
            for problem in new {
                tracing::warn!(page = &*problem.page, "{}; {}", problem.what, problem.todo);
            }
            for page in over {
                tracing::info!(page = &*page, "this problem is over");
            }
            rt.sleep(LOOK).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problems_are_told_once_and_again_when_more_come() {
        let of = |page: &'static str, what: &str| Problem {
            page: page.into(),
            what: what.to_owned(),
            todo: "see to it".to_owned(),
            ..Problem::default()
        };
        let mut known = KnownProblems::default();
        let (full, a, b) = (of("full", "97 %"), of("missing", "a"), of("missing", "b"));
        assert_eq!(known.look(&[]), (vec![], vec![]));
        assert_eq!(known.look(&[full.clone(), a.clone()]), (vec![&full, &a], vec![]));
        // The same, in other words.
        assert_eq!(known.look(&[of("full", "98 %"), a.clone()]), (vec![], vec![]));
        let one_more = [a.clone(), b.clone()];
        assert_eq!(known.look(&one_more), (vec![&b], vec!["full".into()]));
        assert_eq!(known.look(&[b]), (vec![], vec![]));
        assert_eq!(known.look(&[]), (vec![], vec!["missing".into()]));
    }
}
