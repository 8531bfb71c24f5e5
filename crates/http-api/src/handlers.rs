//! Requests of clients, from their headers to their answers.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{RawPathParams, Request};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::routing::{MethodFilter, on};
use model::device::DeviceStatus;
use model::health::{Health, HealthState};
use model::job::{Job, JobStarted, JobState};
use model::{Answer, Failure, FailureKind, Status, Verb, operations, request};
use serde::Serialize;
use tokio::sync::{Semaphore, watch};

use crate::access::{ClientSocket, Grant, Rules};
use crate::engine::{Engine, ask, ask_for};
use crate::events::events;
use crate::failure::{failed, json_response, text_response};
use crate::history::History;
use crate::input::{self, Input};
use crate::jobs::{Cancel, Jobs, Writeback};
use crate::metrics::{self, Format, HttpCounters};
use crate::openapi;
use crate::page;
use crate::past::PastChanges;
use crate::places::{Host, HttpCrowds};
use crate::routes::ROUTES;
use crate::snapshot::Snapshot;
use crate::table::{Act, Route, ShownPart};

/// The largest body of a request, in bytes.
const BODY_BYTES: usize = 64 << 10;
/// The time that a client may take for a body.
const BODY_LIMIT: Duration = Duration::from_secs(15);
/// The number of streams of events at a time.
const STREAMS: usize = 8;

/// The state that all connections share.
pub struct Api {
    rules: Rules,
    engine: Arc<dyn Engine>,
    jobs: Jobs,
    snapshot: Arc<Snapshot>,
    history: Arc<History>,
    past: Arc<PastChanges>,
    streams: Arc<Semaphore>,
    stopped: watch::Receiver<bool>,
    connections: Arc<AtomicUsize>,
    requests: AtomicU64,
    refused: AtomicU64,
    crowds: Arc<HttpCrowds>,
}

/// Counts for as long as it lives.
pub struct ConnectionGuard(Arc<AtomicUsize>);

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Api {
    /// Of a server that is to go by these rules.
    pub fn new(rules: Rules, engine: Arc<dyn Engine>, stopped: watch::Receiver<bool>) -> Api {
        Api {
            rules,
            engine,
            jobs: Jobs::default(),
            snapshot: Arc::default(),
            history: Arc::default(),
            past: Arc::default(),
            streams: Arc::new(Semaphore::new(STREAMS)),
            stopped,
            connections: Arc::default(),
            requests: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            crowds: Arc::default(),
        }
    }

    /// The counts of connections for which there was no room.
    pub fn crowds(&self) -> &Arc<HttpCrowds> {
        &self.crowds
    }

    /// A connection is there until what is returned is dropped.
    pub fn connected(&self) -> ConnectionGuard {
        self.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(self.connections.clone())
    }

    /// Tells of the end.
    pub fn stopped(&self) -> watch::Receiver<bool> {
        self.stopped.clone()
    }

    /// Takes samples of the last hour, and looks for changes, until it is dropped.
    pub fn follow(&self) -> impl Future<Output = ()> + use<> {
        let (engine, snapshot) = (self.engine.clone(), self.snapshot.clone());
        let history = self.history.clone().follow(engine.clone(), snapshot.clone());
        let past = self.past.clone().follow(engine, snapshot, self.jobs.clone());
        async move {
            tokio::join!(history, past);
        }
    }

    /// All routes of the table.
    pub fn router(self: &Arc<Self>) -> Router {
        let mut router = Router::new();
        for route in ROUTES.iter() {
            let api = self.clone();
            let handler = move |request: Request| async move { answer(&api, route, request).await };
            router = router.route(route.path, on(filter(route.method), handler));
        }
        router
            .fallback(|| async {
                failed(&Failure::new(FailureKind::NotFound, "there is no such path"))
            })
            .method_not_allowed_fallback(|| async {
                let text = "the path does not have this method; the header Allow says which it has";
                failed(&Failure::new(FailureKind::NoMethod, text))
            })
    }

    fn counters(&self) -> HttpCounters {
        HttpCounters {
            connections: self.connections.load(Ordering::Relaxed) as u64,
            requests: self.requests.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            connections_refused: self.crowds.refused.load(Ordering::Relaxed),
            connections_crowded_out: self.crowds.crowded_out.load(Ordering::Relaxed),
            streams: (STREAMS - self.streams.available_permits()) as u64,
            jobs: self.jobs.running() as u64,
        }
    }
}

fn filter(method: &str) -> MethodFilter {
    match method {
        "POST" => MethodFilter::POST,
        "PUT" => MethodFilter::PUT,
        "PATCH" => MethodFilter::PATCH,
        "DELETE" => MethodFilter::DELETE,
        _ => MethodFilter::GET,
    }
}

/// Refuses a request, or has it routed.
pub async fn refuse_or<F>(
    api: &Api,
    via: ClientSocket,
    host: Host,
    request: Request,
    routed: impl FnOnce(Request) -> F,
) -> Response<Body>
where
    F: Future<Output = Result<Response<Body>, Infallible>>,
{
    api.requests.fetch_add(1, Ordering::Relaxed);
    let (parts, body) = request.into_parts();
    let body = read_body(body).await;
    let mut request = Request::from_parts(parts, Body::empty());
    let authority = request.uri().authority();
    let named = api.rules.check_name(via, request.headers(), authority);
    if let (Ok(()), Some(file)) = (&named, page::find(request.method(), request.uri().path())) {
        return file.response(request.headers());
    }
    let own = named.and_then(|()| api.rules.check_origin(request.method(), request.headers()));
    let grant = own.and_then(|()| api.rules.grant(via, request.headers()));
    let basic = |r: &Route| r.is_basic() && r.path == request.uri().path();
    let grant = match grant {
        Ok(Grant::Basics) if !ROUTES.iter().any(basic) => Err(Failure::new(
            FailureKind::Unauthorized,
            "over TCP only GET /metrics and GET /v1/health are there: the server has no token. \
             Set token_file in [http], or use the unix socket",
        )),
        other => other,
    };
    match (grant, body) {
        (Err(e), _) => {
            api.refused.fetch_add(1, Ordering::Relaxed);
            api.crowds.tell_refused(host, &e.message);
            failed(&e)
        }
        (Ok(_), Err(e)) => failed(&e),
        (Ok(grant), Ok(body)) => {
            request.extensions_mut().insert(grant);
            request.extensions_mut().insert(body);
            let Ok(response) = routed(request).await;
            response
        }
    }
}

async fn answer(api: &Arc<Api>, route: &'static Route, request: Request) -> Response<Body> {
    let (mut parts, _) = request.into_parts();
    let body = parts.extensions.remove::<Bytes>().unwrap_or_default();
    let grant = parts.extensions.get::<Grant>().copied().unwrap_or(Grant::Basics);
    let outcome = async {
        use axum::extract::FromRequestParts;
        let path = RawPathParams::from_request_parts(&mut parts, &()).await;
        let path = path.map_err(|e| Failure::invalid(e.body_text()))?;
        let path: Vec<String> = path.iter().map(|(_, value)| value.to_owned()).collect();
        check_type(&parts.headers, &body)?;
        let input = input::read(route, &path, parts.uri.query(), &body)?;
        act(api, route, &input, &parts.headers, grant).await
    };
    outcome.await.unwrap_or_else(|e| failed(&e))
}

/// The body. It is read before anything is said of the request, so that a client that is refused
/// can send it, and then reads why.
async fn read_body(body: Body) -> Result<Bytes, Failure> {
    let too_large = || {
        let text = format!("a body has at most {BODY_BYTES} bytes");
        Failure::new(FailureKind::TooLarge, text)
    };
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    if body.size_hint().lower() > BODY_BYTES as u64 {
        return Err(too_large());
    }
    match tokio::time::timeout(BODY_LIMIT, to_bytes(body, BODY_BYTES)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(e)) if e.to_string().contains("limit") => Err(too_large()),
        Ok(Err(e)) => Err(Failure::invalid(format!("the body did not come: {e}"))),
        Err(_) => Err(Failure::new(FailureKind::Timeout, "the body did not come in time")),
    }
}

/// A body is JSON by its type: a page of another origin cannot send that unasked.
fn check_type(headers: &HeaderMap, body: &[u8]) -> Result<(), Failure> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
    if body.is_empty() || kind.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    let text = "a body is JSON: send the header Content-Type: application/json";
    Err(Failure::new(FailureKind::NoJson, text))
}

async fn act(
    api: &Arc<Api>,
    route: &Route,
    input: &Input,
    headers: &HeaderMap,
    grant: Grant,
) -> Result<Response<Body>, Failure> {
    match route.act {
        Act::Ask(request::Status::WORD, ShownPart::Whole) => {
            Ok(respond(&*api.snapshot.renew(&api.engine).await?))
        }
        Act::Ask(verb, shown) => {
            let answer = ask(&api.engine, input.request(verb)?).await;
            if route.method != "GET" {
                api.snapshot.forget().await;
            }
            show(answer?, shown, input)
        }
        Act::Job(verb) => job(api, verb, input).await,
        Act::Jobs => {
            look_at_jobs(api).await;
            Ok(respond(&api.jobs.list()))
        }
        Act::OneJob => {
            look_at_jobs(api).await;
            api.jobs.find(job_of(input)).map(|job| respond(&job))
        }
        Act::CancelJob => {
            let id = job_of(input);
            if let Cancel::Ask(request) = api.jobs.how_to_cancel(id)? {
                ask_for(&api.engine, request).await?;
            }
            look_at_jobs(api).await;
            api.jobs.cancel(id);
            api.jobs.find(id).map(|job| respond(&job))
        }
        Act::Events => {
            let every = Duration::from_secs(input.number("every").max(1));
            let place = api.streams.clone().try_acquire_owned().map_err(|_| {
                Failure::new(
                    FailureKind::Busy,
                    format!("there are {STREAMS} streams of events already"),
                )
            })?;
            let (engine, snapshot) = (api.engine.clone(), api.snapshot.clone());
            Ok(events(engine, snapshot, api.jobs.clone(), api.stopped(), every, place))
        }
        Act::Changes => {
            api.past.look(&api.engine, &api.snapshot, &api.jobs).await;
            Ok(respond(&api.past.shown(input.number("from"))))
        }
        Act::History => Ok(respond(&api.history.shown(input.number("from")))),
        Act::Health => Ok(respond(&health(&*api.snapshot.get(&api.engine).await?, grant))),
        Act::Advice => {
            let page = input.text("page");
            let unknown = || not_found(format!("docs/operations.md has no problem {page:?}"));
            operations::advice(page).map(|advice| respond(&advice)).ok_or_else(unknown)
        }
        Act::Metrics => {
            let status = api.snapshot.get(&api.engine).await?;
            let format = Format::accepted(headers);
            let text = metrics::render(&status, &api.counters(), format, grant == Grant::All);
            Ok(text_response(StatusCode::OK, format.content_type(), text))
        }
        Act::OpenApi => Ok(respond(&openapi::document())),
    }
}

fn respond(value: &impl Serialize) -> Response<Body> {
    json_response(StatusCode::OK, value)
}

/// The response where there is nothing to say: it has no body.
fn respond_done() -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn not_found(text: impl Into<String>) -> Failure {
    Failure::new(FailureKind::NotFound, text)
}

/// The part of an answer that is to be shown.
fn show(answer: Answer, shown: ShownPart, input: &Input) -> Result<Response<Body>, Failure> {
    match (shown, answer) {
        (ShownPart::Whole, Answer::Done(_)) => Ok(respond_done()),
        (ShownPart::Whole, answer) => Ok(respond(&answer)),
        (ShownPart::Cache, Answer::Status(status)) => {
            status.cache.map(|cache| respond(&cache)).ok_or(not_found("the pool has no cache"))
        }
        (ShownPart::Devices, Answer::Status(status)) => {
            let devices: Vec<DeviceStatus> = status.pool.devices;
            Ok(respond(&devices))
        }
        (ShownPart::First, Answer::Settings(settings)) => {
            settings.first().map(respond).ok_or(not_found("there is none of this name"))
        }
        (ShownPart::Named, Answer::Volumes(volumes)) => {
            let name = input.text("name");
            let found = volumes.iter().find(|volume| volume.name == name).map(respond);
            found.ok_or_else(|| not_found(format!("there is no volume {name:?}")))
        }
        (ShownPart::Named, Answer::Snapshots(snapshots)) => {
            let name = input.text("name");
            let is_it = |s: &&model::snapshot::Snapshot| {
                name.rsplit_once('@') == Some((&s.volume, &s.name))
            };
            let found = snapshots.iter().find(is_it).map(respond);
            found.ok_or_else(|| not_found(format!("there is no snapshot {name:?}")))
        }
        (ShownPart::Cache | ShownPart::Devices | ShownPart::First | ShownPart::Named, _) => {
            Err(Failure::new(FailureKind::Failed, "the engine gave another answer"))
        }
    }
}

fn job_of(input: &Input) -> u64 {
    input.id()
}

/// Returns the bytes that the cache has to write back, and those that it has carried. `None` where
/// the status cannot be had.
async fn writeback(api: &Api) -> Option<Writeback> {
    let status = api.snapshot.get(&api.engine).await.ok()?;
    let cache = status.cache.as_ref();
    Some(cache.map_or_else(Writeback::default, |cache| Writeback {
        dirty: cache.dirty_bytes,
        carried: cache.writeback.carried_bytes,
    }))
}

/// Notes the progress of the jobs that run.
async fn look_at_jobs(api: &Api) {
    if api.jobs.running() > 0
        && let Some(now) = writeback(api).await
    {
        api.jobs.note(now);
    }
}

async fn job(api: &Api, verb: &'static str, input: &Input) -> Result<Response<Body>, Failure> {
    let writes_back = verb.starts_with("cache-");
    let now = if writes_back { writeback(api).await.or(Some(Writeback::default())) } else { None };
    let (id, running) = api.jobs.start(&api.engine, input.request(verb)?, now)?;
    if !input.flag("wait") {
        let mut response = json_response(StatusCode::ACCEPTED, &JobStarted { job: id });
        if let Ok(place) = HeaderValue::from_str(&format!("/v1/jobs/{id}")) {
            response.headers_mut().insert(header::LOCATION, place);
        }
        return Ok(response);
    }
    // The job runs on where the client goes. Without a result the runtime ends.
    running.await.unwrap_or_else(|e| {
        Err(if e.is_cancelled() { Failure::cancelled() } else { Failure::stopping() })
    })?;
    api.snapshot.forget().await;
    let done = || Job { job: id, state: JobState::Done, ..Job::default() };
    Ok(respond(&api.jobs.find(id).unwrap_or_else(|_| done())))
}

/// Returns the problems; without names of files for clients without a token.
fn health(status: &Status, grant: Grant) -> Health {
    let problems = &status.health;
    Health {
        state: if problems.is_empty() { HealthState::Ok } else { HealthState::Problems },
        pages: problems.iter().map(|problem| problem.page.clone()).collect(),
        problems: (grant == Grant::All).then(|| problems.clone()),
    }
}

#[cfg(test)]
#[path = "handlers_tests.rs"]
mod tests;
