//! Room is given in order, and given back.

use std::task::{Context, Poll, Waker};

use super::*;

fn ring(blocks: u32) -> RingRoom {
    RingRoom::new(blocks, Event::new(), Event::new())
}

fn poll(line: &mut OneShot<Result<JournalRoom>>) -> Poll<Option<Result<JournalRoom>>> {
    std::pin::Pin::new(line).poll(&mut Context::from_waker(Waker::noop()))
}

fn granted(line: &mut OneShot<Result<JournalRoom>>) -> Option<JournalRoom> {
    match poll(line) {
        Poll::Ready(room) => Some(room.expect("not closed").expect("not refused")),
        Poll::Pending => None,
    }
}

#[test]
fn room_is_given_in_order_and_upkeep_finds_what_is_kept_back() {
    // 192 blocks, of which 16 are kept back.
    let ring = ring(256);
    let all = ring.try_take(Share::Clients, 176).unwrap();
    assert!(ring.try_take(Share::Clients, 1).is_none());
    let upkeep = ring.try_take(Share::Upkeep, 16).unwrap();
    let (mut first, mut second) =
        (ring.line_up(Share::Clients, 100), ring.line_up(Share::Clients, 1));
    let mut late = ring.line_up(Share::Upkeep, 1);
    assert!(
        granted(&mut first).is_none()
            && granted(&mut second).is_none()
            && granted(&mut late).is_none()
    );
    // What was pushed stays taken until it is forgotten; the rest of the room is there at once.
    let mut all = all;
    all.spend(80);
    drop(all);
    let late = granted(&mut late).expect("upkeep first");
    assert!(granted(&mut first).is_none(), "96 are not enough");
    assert!(granted(&mut second).is_none(), "and nobody goes before it");
    assert!(ring.try_take(Share::Clients, 1).is_none());
    drop(upkeep);
    assert!(granted(&mut first).is_none());
    ring.forgotten(80);
    let (first, second) = (granted(&mut first).unwrap(), granted(&mut second).unwrap());
    assert_eq!(ring.taken(), 102);
    drop((late, first, second));
    assert_eq!(ring.taken(), 0);
}

#[test]
fn who_leaves_the_line_holds_nothing() {
    let ring = ring(256);
    let all = ring.try_take(Share::Clients, 170).unwrap();
    let (gone, mut next) = (ring.line_up(Share::Clients, 100), ring.line_up(Share::Clients, 100));
    let late = ring.line_up(Share::Clients, 70);
    drop(gone);
    drop(all);
    assert!(granted(&mut next).is_some());
    // Granted, and never looked at.
    drop(late);
    assert_eq!(ring.taken(), 0);
}

#[test]
fn a_checkpoint_is_wanted_where_it_helps() {
    let ring = ring(256);
    let requests = ring.try_take(Share::Clients, 176).unwrap();
    assert!(!ring.wants_checkpoint(100), "nobody waits");
    let client = ring.line_up(Share::Clients, 1);
    assert!(!ring.wants_checkpoint(0) && !ring.wants_checkpoint(23) && ring.wants_checkpoint(24));
    let upkeep = [ring.line_up(Share::Upkeep, 16), ring.line_up(Share::Upkeep, 1)];
    assert!(!ring.wants_checkpoint(0) && ring.wants_checkpoint(1));
    drop((requests, client, upkeep));
}

#[test]
fn all_are_woken_when_nobody_makes_room_any_more() {
    let ring = ring(256);
    let all = ring.try_take(Share::Upkeep, 192).unwrap();
    let mut line = ring.line_up(Share::Clients, 1);
    ring.wake_all();
    assert!(matches!(poll(&mut line), Poll::Ready(None)));
    drop(all);
    assert_eq!(ring.taken(), 0);
}

#[test]
fn clients_are_told_that_there_will_be_none_and_upkeep_waits_on() {
    let ring = ring(256);
    let all = ring.try_take(Share::Upkeep, 192).unwrap();
    let (mut client, mut upkeep) =
        (ring.line_up(Share::Clients, 1), ring.line_up(Share::Upkeep, 1));
    ring.refuse_clients(&StorageError::new(base::ErrorKind::Io, "gone"));
    assert!(matches!(poll(&mut client), Poll::Ready(Some(Err(e))) if e.context == "gone"));
    assert!(poll(&mut upkeep).is_pending());
    drop(all);
    assert!(granted(&mut upkeep).is_some());
    assert_eq!(ring.taken(), 0);
}

#[test]
fn nodes_are_held_with_it() {
    let freed = Event::new();
    let ring = RingRoom::new(256, Event::new(), freed.clone());
    let room = ring.try_take(Share::Clients, 1).unwrap().with_nodes(5);
    assert_eq!(ring.nodes(), 5);
    let mut wait = std::pin::pin!(freed.wait());
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    drop(room);
    assert_eq!(ring.nodes(), 0);
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
#[should_panic(expected = "records took 2 blocks of the ring, and 1 were reserved")]
fn records_take_no_more_than_was_reserved() {
    ring(256).try_take(Share::Clients, 1).unwrap().spend(2);
}
