//! The HTTP API over a socket of its own, with an engine that answers everything.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http_api::routes::ROUTES;
use http_api::{Engine, Listener, Reply, Rules, Server};
use model::volume::Volume;
use model::{Answer, Request, Status};

/// What a client waits for more of an answer at most.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of answers that are looked at.
const ANSWER: usize = 64 << 10;
/// A stream that never ends.
const EVENTS: &[u8] = b"text/event-stream";

struct PermissiveEngine;

impl Engine for PermissiveEngine {
    fn ask(&self, request: Request, reply: Reply) {
        let volume = Volume { name: "vol0".into(), ..Volume::default() };
        reply(Ok(match request {
            Request::Status(_) => Status::default().into(),
            Request::VolumeList(_) => vec![volume].into(),
            Request::Settings(_) => Answer::Settings(Box::default()),
            Request::SnapshotList(_) => Answer::Snapshots(Box::default()),
            Request::SnapshotCreate(_) => Answer::TakenSnapshots(Box::default()),
            _ => ().into(),
        }));
    }
}

struct RunningServer {
    address: SocketAddr,
    _server: Server,
}

static SERVED: LazyLock<RunningServer> = LazyLock::new(|| {
    // An abstract name leaves no file behind.
    let name = format!("forebay-fuzzing-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name).expect("a name that is short");
    let listener = UnixListener::bind_addr(&address).expect("a socket of our own");
    let server =
        Server::start(vec![Listener::Unix(listener)], Rules::default(), Arc::new(PermissiveEngine));
    RunningServer { address, _server: server.expect("a thread for the server") }
});

/// What a client sends over one connection. It is answered or closed, and no answer says that the
/// server has failed.
pub fn requests(data: &[u8]) {
    let mut stream = UnixStream::connect_addr(&SERVED.address).expect("the server accepts");
    stream.set_read_timeout(Some(PATIENCE)).expect("a limit of time");
    // The server may close at the first wrong byte.
    if stream.write_all(data).is_err() || stream.shutdown(Shutdown::Write).is_err() {
        return;
    }
    let answer = answer(&mut stream);
    let status = answer.get(9..12).unwrap_or_default();
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1."), "an answer that is not HTTP");
    assert!(status != b"500", "{}", String::from_utf8_lossy(&answer));
}

/// What comes until the connection ends, or becomes a stream of events.
fn answer(stream: &mut UnixStream) -> Vec<u8> {
    let (mut answer, mut piece) = (Vec::new(), [0; 4096]);
    while answer.len() < ANSWER && !answer.windows(EVENTS.len()).any(|w| w == EVENTS) {
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(n) => answer.extend_from_slice(&piece[..n]),
            Err(e) => {
                let late = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
                assert!(!late, "no answer, and no end of the connection");
                break;
            }
        }
    }
    answer
}

/// Seeds of [`requests`]: each route, and bodies of different kinds.
pub fn some_requests() -> Vec<Vec<u8>> {
    const BODIES: [&str; 3] =
        ["", "{}", r#"{"name":"vol0","size_bytes":4096,"value":"1","mode":"writethrough"}"#];
    let request = |method: &str, path: &str, body: &str| {
        let len = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        let kind = "Content-Type: application/json\r\n";
        format!("{head}{kind}Content-Length: {len}\r\n\r\n{body}").into_bytes()
    };
    let of_route = |route: &http_api::table::Route| {
        let path = route.path.replace(['{', '}'], "");
        BODIES.map(|body| request(route.method, &path, body))
    };
    let mut all: Vec<_> = ROUTES.iter().flat_map(of_route).collect();
    all.push(request("GET", "/v1/explain?volume=a%20b&since_seconds=7", ""));
    all.push(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\nGET /metrics HTTP/1.0\r\n\r\n".to_vec());
    let head = b"POST /v1/volumes HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    all.push([&head[..], b"2\r\n{}\r\n0\r\n\r\n"].concat());
    all
}
