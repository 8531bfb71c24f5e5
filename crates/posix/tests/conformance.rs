//! Runs the conformance suite on epoll and threads: with unix and TCP sockets, with files on a disk
//! and in memory.
#![allow(clippy::unwrap_used, reason = "a test")]

use posix::Posix;

mod world;
use world::{Kind, World, a_shared_listener, in_memory, on_disk};

fn suite(threads: usize, kind: Kind<'_>) {
    conformance::run(&mut || {
        let posix = Posix::new(threads).unwrap();
        let handles = posix.handles();
        World::boxed(Box::new(posix), handles, kind)
    });
}

#[test]
fn direct_files_and_unix_sockets() {
    suite(4, Kind { dir: on_disk(), tcp: false, direct: true });
}

#[test]
fn buffered_files_and_tcp_sockets() {
    suite(4, Kind { dir: on_disk(), tcp: true, direct: false });
}

#[test]
fn one_thread() {
    suite(1, Kind { dir: on_disk(), tcp: false, direct: false });
}

#[test]
fn files_in_memory() {
    match in_memory() {
        Some(dir) => suite(4, Kind { dir, tcp: false, direct: true }),
        None => println!("skipped: there is no tmpfs here"),
    }
}

#[test]
fn closing_a_shared_listener_leaves_it_to_the_other() {
    let posix = Posix::new(1).unwrap();
    let handles = posix.handles();
    a_shared_listener(Box::new(posix), &handles);
}
