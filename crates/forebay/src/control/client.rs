//! A command's conversation with a running server.
//!
//! Fault model: a server may be stopped, or stand still. The kernel goes on to take connections for
//! it, until so many wait that it takes no more. A command that only looks ends after
//! [`PATIENCE`]. One that changes something waits on, as the server may be at work; where the
//! server does not answer others either, the command says so once.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use model::{Failure, FailureKind, Request, Verb, request};
use serde_json::Value;
use socket2::{Domain, SockAddr, Socket, Type};

use crate::config::chosen::find;
use crate::control::words::{next, only_looks};
use crate::control::{decode_answer, encode_request};
use crate::error::{CommandError, Result};
use crate::terminal::progress::note;

/// The control sockets that commands try if they are not told one: that of `forebay up`, or else
/// that of a package.
pub const SOCKETS: [&str; 2] = ["./forebay-data/control.sock", "/run/forebay/control.sock"];
/// The time for which a server may say nothing until somebody is told.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The same, where the only question is whether the server answers.
const SIGN_OF_LIFE: Duration = Duration::from_secs(3);

/// Asks the server at `socket`. A request that changes something is waited for, however long it
/// takes: a shrink, for instance, frees before it answers.
pub fn ask<R: Verb>(socket: &Path, request: R) -> Result<R::Answer> {
    let request = request.into();
    let answer = match only_looks(&request) {
        true => talk(socket, &request, PATIENCE, Err)?,
        false => patiently(socket, &request)?,
    };
    understood::<R>(answer)
}

/// Asks, and waits for the answer however long that takes.
pub fn ask_patiently<R: Verb>(socket: &Path, request: R) -> Result<R::Answer> {
    understood::<R>(patiently(socket, &request.into())?)
}

fn understood<R: Verb>(answer: Value) -> Result<R::Answer> {
    serde_json::from_value(answer).map_err(|e| {
        CommandError::Failed(format!(
            "the server answers to {} in a way that this command does not know ({e}): it is of \
             another version; forebay version shows both, and a restart of the server makes them \
             one",
            R::WORD
        ))
    })
}

fn patiently(socket: &Path, request: &Request) -> Result<Value> {
    let mut told = false;
    talk(socket, request, PATIENCE, |silent| {
        let status = request::Status {}.into();
        let answers = || talk(socket, &status, SIGN_OF_LIFE, Err).is_ok();
        if !told && !answers() {
            note(&format!("{silent}. This command waits on"));
            told = true;
        }
        Ok(())
    })
}

/// Asks. Whenever the server has said nothing for `patience`, `silent` says whether to wait on.
fn talk(
    socket: &Path,
    request: &Request,
    patience: Duration,
    mut silent: impl FnMut(CommandError) -> Result<()>,
) -> Result<Value> {
    let at = socket.display();
    let broken = |e: io::Error| {
        let e = CommandError::failed(format_args!("talking to the server at {at}"), e);
        e.or_next("forebay status shows whether it is there")
    };
    let mut is_late = |e: &io::Error| match e.kind() {
        ErrorKind::WouldBlock => silent(silence(socket, patience)).map(|()| true),
        _ => Ok(false),
    };
    let mut stream = loop {
        match connect(socket, patience) {
            Ok(stream) => break stream,
            Err(e) if is_late(&e)? => {}
            Err(e) => return Err(nobody_there(socket, &e)),
        }
    };
    let line = encode_request(request).map_err(|e| broken(e.into()))?;
    // A server that refuses the connection may have closed it already, and said why.
    let unsent = match stream.write_all(&line) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => return Err(broken(e)),
        outcome => outcome.err(),
    };
    let (mut reader, mut reply) = (BufReader::new(stream), Vec::new());
    // The bytes that came before an error stay in the reply.
    while let Err(e) = reader.read_until(b'\n', &mut reply) {
        if !is_late(&e)? {
            return Err(broken(unsent.unwrap_or(e)));
        }
    }
    if let (Some(e), true) = (unsent, reply.is_empty()) {
        return Err(broken(e));
    }
    match decode_answer(&reply) {
        Some(Ok(value)) => Ok(value),
        Some(Err(e)) => Err(refused(request, &e)),
        None if reply.is_empty() => Err(CommandError::Failed(format!(
            "the server at {at} ended before it answered; its log says why, and forebay \
                 status whether it is there again"
        ))),
        None => Err(CommandError::Failed(format!(
            "what answers at {at} is not forebay; say with --socket where its control socket is"
        ))),
    }
}

/// Neither a connection nor a read takes longer than `patience`.
fn connect(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A connection waits as long as a write.
    socket.set_write_timeout(Some(patience))?;
    socket.set_read_timeout(Some(patience))?;
    socket.connect(&SockAddr::unix(path)?)?;
    Ok(UnixStream::from(OwnedFd::from(socket)))
}

fn silence(socket: &Path, patience: Duration) -> CommandError {
    CommandError::Failed(format!(
        "the server at {} takes connections, and has not answered for {} s: systemctl status \
         forebay and its log say why; under systemd its watchdog ends it after two minutes",
        socket.display(),
        patience.as_secs()
    ))
}

/// The server's refusal.
fn refused(request: &Request, e: &Failure) -> CommandError {
    let text = e.to_string();
    let error = match is_of_arguments(request, e) {
        true => CommandError::Usage(text),
        false => CommandError::Failed(text),
    };
    error.or_next(&next(request, e))
}

/// Whether a refusal is about the arguments. Where the server calls a new volume or a limit
/// invalid, it is; of other requests it may be about what is there.
fn is_of_arguments(request: &Request, e: &Failure) -> bool {
    match request {
        Request::VolumeCreate(_) | Request::VolumeLimit(_) => e.kind == FailureKind::Invalid,
        Request::Settings(request::Settings { key: Some(_) }) => {
            matches!(e.kind, FailureKind::Invalid | FailureKind::NotFound)
        }
        // A value that is right may be one that changes with a restart only, say.
        Request::Set(request::Set { key, value, .. }) => match find(key).map(|key| key.kind) {
            Ok(kind) => {
                let read = kind.parse(value);
                e.kind == FailureKind::Invalid && !read.is_ok_and(|value| kind.has(value))
            }
            Err(_) => matches!(e.kind, FailureKind::Invalid | FailureKind::NotFound),
        },
        _ => false,
    }
}

/// That of [`SOCKETS`] where something is; the first one, if nothing is at either.
pub fn usual_socket() -> &'static Path {
    first_there(SOCKETS.map(Path::new))
}

fn first_there([own, other]: [&Path; 2]) -> &Path {
    if is_absent(own) && !is_absent(other) { other } else { own }
}

/// Nothing is there. Where this user may not look, something may be.
fn is_absent(path: &Path) -> bool {
    let kind = path.symlink_metadata().err().map(|e| e.kind());
    matches!(kind, Some(ErrorKind::NotFound | ErrorKind::NotADirectory))
}

fn nobody_there(socket: &Path, e: &io::Error) -> CommandError {
    let at = socket.display();
    if !matches!(
        e.kind(),
        ErrorKind::NotFound | ErrorKind::ConnectionRefused | ErrorKind::NotADirectory
    ) {
        let e = CommandError::failed(format_args!("connecting to {at}"), e);
        return e.or_next("run it as the server's user, or say with --socket where it listens");
    }
    let [own, other] = SOCKETS.map(Path::new);
    let nor = match socket == own && is_absent(other) {
        true => format!(", nor at {}", other.display()),
        false => String::new(),
    };
    CommandError::Failed(format!(
        "no server answers at {at}{nor}; start one with `forebay up` or `forebay serve`, or say \
         with --socket where it listens"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_told_from_what_is_refused() {
        let set = |key: &str, value: &str| request::Set {
            key: key.into(),
            value: value.into(),
            save: false,
        };
        let status = |request: Request, kind: FailureKind| {
            refused(&request, &Failure::new(kind, "no")).exit_status()
        };
        assert_eq!(status(set("max_lag", "10").into(), FailureKind::Invalid), 2);
        assert_eq!(status(set("max_lag", "9000h").into(), FailureKind::Invalid), 2);
        assert_eq!(status(set("lag", "1s").into(), FailureKind::NotFound), 2);
        assert_eq!(
            status(request::Settings { key: Some("lag".into()) }.into(), FailureKind::NotFound),
            2
        );
        // It changes with a restart only; or the disk is full.
        assert_eq!(status(set("pool.cached_nodes", "4096").into(), FailureKind::Invalid), 1);
        assert_eq!(status(set("max_lag", "10s").into(), FailureKind::Failed), 1);
        assert_eq!(status(request::CacheDetach {}.into(), FailureKind::Invalid), 1);
    }

    #[test]
    fn a_server_that_says_nothing_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let server = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        server.bind(&SockAddr::unix(&path).unwrap()).unwrap();
        server.listen(0).unwrap();
        let patience = Duration::from_millis(50);
        // The second one finds no room to wait, and waits for that.
        let _first = connect(&path, patience).unwrap();
        for _ in 0..2 {
            let e = talk(&path, &request::Status {}.into(), patience, Err).unwrap_err();
            assert!(e.to_string().contains("has not answered") && e.exit_status() == 1, "{e}");
        }
        let mut waited = 0;
        let e = talk(&path, &request::Gc {}.into(), patience, |e| {
            waited += 1;
            if waited < 3 { Ok(()) } else { Err(e) }
        });
        assert!(e.is_err() && waited == 3);
    }

    #[test]
    fn a_server_is_looked_for_where_one_may_be() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        let found = || first_there([&own, &other]);
        assert_eq!(found(), own);
        std::fs::write(&other, "").unwrap();
        assert_eq!(found(), other);
        std::fs::write(&own, "").unwrap();
        assert_eq!(found(), own);
    }

    #[test]
    fn an_answer_that_comes_in_parts_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let server = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let patience = Duration::from_millis(50);
        let (mut stream, mut waited) = (None, 0);
        let answer = talk(&path, &request::Gc {}.into(), patience, |_| {
            let to = stream.get_or_insert_with(|| server.accept().unwrap().0);
            to.write_all([&b"{\"ok\""[..], b":7", b"}\n"][waited]).unwrap();
            waited += 1;
            Ok(())
        });
        assert_eq!((answer, waited), (Ok(7.into()), 3));
    }
}
