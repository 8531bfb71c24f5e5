//! The thread with the runtime, its listeners and connections.
//!
//! Fault model: clients may send anything, slowly or not at all, and take nothing. Connections of
//! each listener, headers, bodies and the time that they take are bounded. A client that takes
//! nothing of an answer is closed after a while.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use base::crowd::network_of;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;
use tower_service::Service;

use crate::access::{ClientSocket, Grant, Rules};
use crate::engine::Engine;
use crate::handlers::{Api, refuse_or};
use crate::places::{ConnectionPlace, ConnectionPlaces, Host, HttpCrowds};
use crate::stall::StallGuard;

/// The number of connections of each listener.
const MAX_CONNECTIONS: usize = 64;
/// The time that a client may take for the headers of a request, and be idle before them.
const HEAD_LIMIT: Duration = Duration::from_secs(15);
/// The time for which a client may take nothing of an answer.
const WRITE_LIMIT: Duration = Duration::from_secs(15);
/// The bytes of a request's line and headers.
const HEAD_BYTES: usize = 16 << 10;
/// The number of headers of a request.
const HEADERS: usize = 64;
/// The time that connections are given to send their last answer.
const GRACE: Duration = Duration::from_secs(1);

/// A socket to which clients connect.
pub enum Listener {
    /// A unix socket.
    Unix(std::os::unix::net::UnixListener),
    /// A listener at an address and a port.
    Tcp(std::net::TcpListener),
}

/// A server that runs in a thread of its own.
pub struct Server {
    crowds: Arc<HttpCrowds>,
    stop: watch::Sender<bool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Serves clients of the listeners. Errors: those of the system, where it has no thread, or no
    /// descriptor for the runtime.
    pub fn start(
        listeners: Vec<Listener>,
        rules: Rules,
        engine: Arc<dyn Engine>,
    ) -> io::Result<Server> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = watch::channel(false);
        let entered = runtime.enter();
        let listeners = listeners.into_iter().map(adopt).collect::<io::Result<Vec<_>>>()?;
        drop(entered);
        let api = Arc::new(Api::new(rules, engine, stopped.clone()));
        let crowds = api.crowds().clone();
        let work = move || {
            runtime.block_on(serve(listeners, api, stopped));
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name("http".into()).spawn(work)?;
        Ok(Server { crowds, stop, thread: Some(thread) })
    }

    /// The counts of connections for which there was no room.
    pub fn crowds(&self) -> Arc<HttpCrowds> {
        self.crowds.clone()
    }

    /// Takes no more requests, and waits a second at most until clients have their answers. To be
    /// called when the engine takes no more.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the thread of the HTTP server has failed");
        }
    }
}

enum AdoptedSocket {
    Unix(UnixListener),
    Tcp(TcpListener),
}

fn adopt(listener: Listener) -> io::Result<AdoptedSocket> {
    match listener {
        Listener::Unix(listener) => {
            listener.set_nonblocking(true)?;
            UnixListener::from_std(listener).map(AdoptedSocket::Unix)
        }
        Listener::Tcp(listener) => {
            listener.set_nonblocking(true)?;
            TcpListener::from_std(listener).map(AdoptedSocket::Tcp)
        }
    }
}

async fn serve(listeners: Vec<AdoptedSocket>, api: Arc<Api>, mut stopped: watch::Receiver<bool>) {
    let places: Vec<Arc<ConnectionPlaces>> =
        listeners.iter().map(|_| ConnectionPlaces::new(MAX_CONNECTIONS, api.crowds())).collect();
    let mut tasks: Vec<_> = listeners
        .into_iter()
        .zip(&places)
        .map(|(listener, places)| tokio::spawn(accept(listener, api.clone(), places.clone())))
        .collect();
    tasks.push(tokio::spawn(api.follow()));
    // The wait ends when the server is dropped, too.
    let _ = stopped.wait_for(|stop| *stop).await;
    tasks.iter().for_each(|task| task.abort());
    let all_closed = async {
        for places in &places {
            places.all_ended().await;
        }
    };
    let _ = tokio::time::timeout(GRACE, all_closed).await;
}

async fn accept(listener: AdoptedSocket, api: Arc<Api>, places: Arc<ConnectionPlaces>) {
    loop {
        let accepted = match &listener {
            AdoptedSocket::Unix(listener) => listener.accept().await.map(|(stream, _)| {
                let user = stream.peer_cred().map(|cred| Host::User(cred.uid()));
                let host = user.unwrap_or(Host::Unknown);
                take(stream, ClientSocket::Unix, host, &api, &places);
            }),
            AdoptedSocket::Tcp(listener) => listener.accept().await.map(|(stream, from)| {
                // Answers are written whole: there is nothing to wait for.
                let _ = stream.set_nodelay(true);
                let host = Host::Address(network_of(from.ip().to_canonical()));
                take(stream, ClientSocket::Tcp, host, &api, &places);
            }),
        };
        if let Err(e) = accepted {
            tracing::warn!("accepting an HTTP connection: {e}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Serves a connection, unless there are too many.
fn take<S>(stream: S, via: ClientSocket, host: Host, api: &Arc<Api>, places: &Arc<ConnectionPlaces>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    if let Some(place) = places.take(host) {
        let place = Arc::new(place);
        drop(tokio::spawn(converse(stream, via, host, api.clone(), place)));
    }
}

async fn converse<S>(
    stream: S,
    via: ClientSocket,
    host: Host,
    api: Arc<Api>,
    place: Arc<ConnectionPlace>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let _counted = api.connected();
    let mut stopped = api.stopped();
    let router = api.router();
    let known = place.clone();
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        let (api, mut router, place) = (api.clone(), router.clone(), known.clone());
        place.note_asked();
        async move {
            let request: Request = request.map(Body::new);
            let routed = refuse_or(&api, via, host, request, |request| {
                if request.extensions().get() == Some(&Grant::All) {
                    place.note_known();
                }
                router.call(request)
            })
            .await;
            Ok::<_, Infallible>(routed)
        }
    });
    let io = TokioIo::new(StallGuard::new(stream, WRITE_LIMIT));
    let mut connection = std::pin::pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_LIMIT)
            .max_buf_size(HEAD_BYTES)
            .max_headers(HEADERS)
            .serve_connection(io, service)
    );
    let told = async move { stopped.wait_for(|stop| *stop).await.is_ok() };
    let first = tokio::select! {
        ended = connection.as_mut() => Some(ended),
        () = place.lost() => return,
        _ = told => None,
    };
    let ended = match first {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(e) = ended {
        tracing::debug!("an HTTP connection ended: {e}");
    }
}
