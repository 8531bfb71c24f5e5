use model::change::{Fact, LastChanges, Subject};
use model::operations::Advice;
use model::scrub::ScrubState;
use tower_service::Service;

use super::*;
use crate::engine::Reply;

/// An engine that answers with a status of which the scrub is in another state each time.
#[derive(Default)]
struct Scrubbing(AtomicU64);

impl Engine for Scrubbing {
    fn ask(&self, request: model::Request, reply: Reply) {
        assert_eq!(request, request::Status {}.into());
        let mut status = Status::default();
        if self.0.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
            status.pool.scrub.state = ScrubState::Running;
        }
        reply(Ok(status.into()));
    }
}

/// Asks an API as a client with all rights.
async fn get<T: serde::de::DeserializeOwned>(api: &Arc<Api>, path: &str) -> (StatusCode, T) {
    let mut request = axum::http::Request::builder().uri(path).body(Body::empty()).unwrap();
    request.extensions_mut().insert(Grant::All);
    let Ok(response) = api.router().call(request).await;
    let status = response.status();
    let body = to_bytes(response.into_body(), BODY_BYTES).await.unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

fn with_api<F: Future<Output = ()>>(work: impl FnOnce(Arc<Api>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rules = Rules { token: None, hosts: Vec::new() };
    let (_stop, stopped) = watch::channel(false);
    let api = Api::new(rules, Arc::new(Scrubbing::default()), stopped);
    runtime.block_on(work(Arc::new(api)));
}

#[test]
fn a_problem_has_its_section() {
    with_api(|api| async move {
        let (status, advice): (_, Advice) = get(&api, "/v1/problems/pool-full").await;
        assert_eq!((status, advice.page.as_str()), (StatusCode::OK, "pool-full"));
        assert!(advice.text.contains("**To do"), "{advice:?}");
        let (status, error): (_, serde_json::Value) = get(&api, "/v1/problems/a%20b").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
        let message = error["error"]["message"].as_str().unwrap();
        assert!(message.contains("no problem \"a b\""), "{message}");
    });
}

#[test]
fn changes_are_seen_when_a_client_asks() {
    with_api(|api| async move {
        let (_, first): (_, LastChanges) = get(&api, "/v1/changes").await;
        assert!(first.since > 1.6e9 && first.changes.is_empty(), "{first:?}");
        api.snapshot.forget().await;
        let (_, second): (_, LastChanges) = get(&api, "/v1/changes?from=0").await;
        assert_eq!((second.next, second.since), (1, first.since));
        let [change] = &second.changes[..] else { panic!("{second:?}") };
        assert_eq!(
            (change.what, &change.to),
            (Subject::Scrub, &Some(Fact::Text("running".into())))
        );
        let (_, third): (_, LastChanges) = get(&api, "/v1/changes?from=1").await;
        assert_eq!((third.next, third.changes.len()), (1, 0));
    });
}
