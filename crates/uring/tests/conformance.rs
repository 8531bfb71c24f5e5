//! Runs the conformance suite on io_uring: with unix and TCP sockets, with direct and buffered
//! files on a disk, and with files in memory.
#![allow(clippy::unwrap_used, reason = "a test")]

use uring::Uring;

#[path = "../../posix/tests/world/mod.rs"]
mod world;
use world::{Kind, World, a_shared_listener, in_memory, on_disk};

/// With two `entries` the submission queue is often full: the suite has more operations in flight.
fn suite(entries: u32, kind: Kind<'_>) {
    if let Err(e) = Uring::new(entries) {
        println!("skipped: io_uring is refused here: {e}");
        return;
    }
    conformance::run(&mut || {
        let uring = Uring::new(entries).unwrap();
        let handles = uring.handles();
        World::boxed(Box::new(uring), handles, kind)
    });
}

#[test]
fn direct_files_and_unix_sockets() {
    suite(64, Kind { dir: on_disk(), tcp: false, direct: true });
}

#[test]
fn buffered_files_and_tcp_sockets() {
    suite(64, Kind { dir: on_disk(), tcp: true, direct: false });
}

#[test]
fn a_short_submission_queue() {
    suite(2, Kind { dir: on_disk(), tcp: true, direct: true });
}

#[test]
fn files_in_memory() {
    match in_memory() {
        Some(dir) => suite(64, Kind { dir, tcp: false, direct: true }),
        None => println!("skipped: there is no tmpfs here"),
    }
}

#[test]
fn closing_a_shared_listener_leaves_it_to_the_other() {
    match Uring::new(64) {
        Ok(uring) => {
            let handles = uring.handles();
            a_shared_listener(Box::new(uring), &handles);
        }
        Err(e) => println!("skipped: io_uring is refused here: {e}"),
    }
}
