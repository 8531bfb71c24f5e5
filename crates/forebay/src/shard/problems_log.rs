//! Problems come and go in the log, too: who reads the journal alone hears of them.

use std::collections::BTreeMap;

use base::Duration;
use rt::Rt;
use serde_json::Value;

/// How often the state is looked at.
const LOOK: Duration = Duration::from_secs(5);

/// How many problems there are of each page of docs/operations.md.
#[derive(Default)]
struct Known(BTreeMap<String, usize>);

impl Known {
    /// Takes note of all problems that there are now: those that are new, and pages that are over.
    /// What a problem says may have figures that change, so it is told by its page alone.
    fn look<'a>(&mut self, problems: &'a [Value]) -> (Vec<&'a Value>, Vec<String>) {
        let page_of = |problem: &Value| problem["page"].as_str().unwrap_or_default().to_owned();
        let mut now: BTreeMap<String, usize> = BTreeMap::new();
        let mut new = Vec::new();
        for problem in problems {
            let page = page_of(problem);
            let count = now.entry(page.clone()).or_default();
            *count += 1;
            if *count > self.0.get(&page).copied().unwrap_or(0) {
                new.push(problem);
            }
        }
        let over = self.0.keys().filter(|page| !now.contains_key(*page)).cloned().collect();
        self.0 = now;
        (new, over)
    }
}

/// Logs problems as they come and go, for as long as there is a status.
pub(super) fn log_problems(rt: &Rt, status: impl Fn() -> Option<Value> + 'static) {
    let rt = rt.clone();
    rt.clone().detach(async move {
        let mut known = Known::default();
        while let Some(status) = status() {
            let problems = status["health"].as_array().map_or(&[][..], |all| all);
            let (new, over) = known.look(problems);
            for problem in new {
                let part = |key: &str| problem[key].as_str().unwrap_or_default();
                tracing::warn!(page = part("page"), "{}; {}", part("what"), part("todo"));
            }
            for page in over {
                tracing::info!(page, "this problem is over");
            }
            rt.sleep(LOOK).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn problems_are_told_once_and_again_when_more_come() {
        let of =
            |page: &str, what: &str| json!({ "page": page, "what": what, "todo": "see to it" });
        let mut known = Known::default();
        let (full, a, b) = (of("full", "97 %"), of("missing", "a"), of("missing", "b"));
        assert_eq!(known.look(&[]), (vec![], vec![]));
        assert_eq!(known.look(&[full.clone(), a.clone()]), (vec![&full, &a], vec![]));
        // The same, in other words.
        assert_eq!(known.look(&[of("full", "98 %"), a.clone()]), (vec![], vec![]));
        let one_more = [a.clone(), b.clone()];
        assert_eq!(known.look(&one_more), (vec![&b], vec!["full".to_owned()]));
        assert_eq!(known.look(&[b]), (vec![], vec![]));
        assert_eq!(known.look(&[]), (vec![], vec!["missing".to_owned()]));
    }
}
