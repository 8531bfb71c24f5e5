//! What a scrub records of itself.

use base::{Lba, PoolAddr};
use format::superblock::scrub::{MAX_LOST, ScrubStage};

use super::*;
use crate::space::Run;

fn lost(addr: u64, lba: u64) -> LostExtent {
    LostExtent { addr: PoolAddr(addr), volume: VolumeId(1), lba: Lba(lba), blocks: 1 }
}

#[test]
fn it_is_started_paused_resumed_cancelled_and_completed() {
    let mut s = Scrub::new(ScrubRecord::default());
    assert!(s.pause(1).is_err() && s.resume().is_err() && s.cancel(1).is_err());
    s.start(None, 100, 5).expect("start");
    let first = s.turn();
    assert!(first.is_some() && s.start(None, 100, 6).is_err() && s.resume().is_err());
    s.pause(7).expect("pause");
    assert!(s.turn().is_none() && s.start(None, 100, 7).is_err() && s.pause(8).is_err());
    s.resume().expect("resume");
    assert_eq!(s.turn(), first);
    s.cancel(9).expect("cancel");
    assert_eq!((s.record().state, s.record().ended_at), (ScrubState::Cancelled, 9));
    s.start(None, 100, 10).expect("start");
    assert_ne!(s.turn(), first);
    assert!(s.complete(s.turn, 20));
    assert_eq!((s.record().completed_at, s.turn()), (20, None));
    s.start(None, 100, 30).expect("start");
    assert_eq!((s.record().completed_at, s.record().ended_at), (20, 0));
}

#[test]
fn lost_blocks_are_joined_bounded_and_forgotten_one_by_one() {
    let mut s = Scrub::new(ScrubRecord::default());
    for i in [0, 1, 2, 3, 1] {
        s.lost(Some(lost(10 + i, 100 + i)));
    }
    assert_eq!(s.extents(), [LostExtent { blocks: 4, ..lost(10, 100) }]);
    let all = s.extents()[0];
    assert!(!s.retain(&all, &[true; 4]));
    assert!(s.retain(&all, &[true, false, true, true]));
    assert_eq!(s.extents(), [lost(10, 100), LostExtent { blocks: 2, ..lost(12, 102) }]);
    // A block that is free is not lost.
    let run = |addr, len| Run { addr: PoolAddr(addr), len };
    assert!(!s.freed(&[run(0, 10), run(11, 1), run(14, 9)]));
    assert!(s.freed(&[run(5, 6), run(13, 1)]));
    assert_eq!(s.extents(), [lost(12, 102)]);
    assert!(!s.enter_lost(lost(12, 102)), "it is known");
    for i in 0..100 {
        s.lost(Some(lost(1_000 + 2 * i, i)));
    }
    assert!(!s.enter_lost(lost(9_000, 9_000)), "that there is no room is known");
    assert_eq!((s.extents().len(), s.record().lost), (MAX_LOST, 105));
}

#[test]
fn what_the_list_has_no_room_for_is_known_until_a_whole_scrub_finds_less() {
    let mut s = Scrub::new(ScrubRecord::default());
    let all: Vec<_> = (0..MAX_LOST as u64).map(|i| lost(10 * i, 10 * i)).collect();
    let list = |s: &mut Scrub| all.iter().for_each(|&e| s.lost(Some(e)));
    list(&mut s);
    assert!(!s.record().more_lost, "there was room");
    assert!(s.enter_lost(lost(9_000, 9_000)), "it was not known");
    assert!(!s.enter_lost(lost(9_002, 9_002)), "it was");
    s.freed(&[Run { addr: PoolAddr(0), len: 10_000 }]);
    assert!(s.extents().is_empty() && s.record().more_lost);
    for (device, stays) in [(Some(1), true), (None, false)] {
        s.start(device, 100, 1).expect("start");
        list(&mut s);
        assert!(s.complete(s.turn, 2));
        assert_eq!(s.record().more_lost, stays, "{device:?}");
    }
    s.start(None, 100, 3).expect("start");
    s.lost(Some(lost(9_000, 9_000)));
    assert!(s.complete(s.turn, 4));
    assert!(s.record().more_lost, "this scrub has found it too");
}

#[test]
fn parts_of_an_extent_that_the_list_has_no_room_for_are_not_forgotten() {
    let mut s = Scrub::new(ScrubRecord::default());
    (0..MAX_LOST as u64).for_each(|i| s.lost(Some(lost(10 * i, 10 * i))));
    (1..3).for_each(|i| s.lost(Some(lost(i, i))));
    let first = s.extents()[0];
    assert!(!s.record().more_lost && first.blocks == 3);
    assert!(s.retain(&first, &[true, false, true]));
    assert!(s.record().more_lost && s.extents().len() == MAX_LOST);
}

#[test]
fn only_a_complete_scrub_of_all_devices_puts_the_next_one_off() {
    let mut s = Scrub::new(ScrubRecord::default());
    let month = 30 * DAY_S;
    s.begin_counting(1_000);
    assert!(!s.is_due(999 + month, month, false) && s.is_due(1_000 + month, month, false));
    s.start(Some(0), 100, 2_000).expect("start");
    assert!(s.complete(s.turn, 3_000));
    assert_eq!(s.record().completed_at, 0);
    assert!(s.is_due(1_000 + month, month, false), "only one device was scrubbed");
    let late = 1_000 + month as u32;
    s.start(None, 100, late).expect("start");
    assert!(!s.is_due(2 * month, month, false), "it runs");
    s.cancel(late).expect("cancel");
    assert!(!s.is_due(u64::from(late) + 1, month, false), "it was cancelled just now");
    assert!(s.is_due(u64::from(late) + DAY_S, month, false), "it was cancelled a day ago");
    assert!(s.is_due(u64::from(late) + 60, 60, false), "scrubs are a minute apart");
    s.start(None, 100, late).expect("start");
    assert!(s.complete(s.turn, late));
    assert!(!s.is_due(u64::from(late) + month - 1, month, false));
}

#[test]
fn a_scrub_that_lacked_a_device_does_not_put_the_next_one_off() {
    let mut s = Scrub::new(ScrubRecord::default());
    let month = 30 * DAY_S;
    s.begin_counting(1_000);
    s.note_away(|_| false);
    assert!(!s.record().away, "none runs");
    s.start(Some(1), 100, 2_000).expect("start");
    s.note_away(|row| row == 1);
    assert!(!s.record().away, "it reads one device alone");
    s.note_away(|row| row != 1);
    assert!(s.record().away && s.complete(s.turn, 2_000));
    let late = 1_000 + month as u32;
    s.start(None, 100, late).expect("start");
    s.note_away(|_| true);
    assert!(s.complete(s.turn, late));
    assert_eq!((s.record().completed_at, s.record().away), (0, true));
    let day = u64::from(late) + DAY_S;
    assert!(!s.is_due(day - 1, month, false) && s.is_due(day, month, false));
    assert!(!s.is_due(day, month, true), "the device is away still");
    assert!(s.is_due(u64::from(late) + month, month, true));
    s.start(None, 100, late).expect("start");
    assert!(!s.record().away && s.complete(s.turn, late));
    assert_eq!(s.record().completed_at, late);
}

#[test]
fn a_pause_that_is_long_is_told() {
    let mut s = Scrub::new(ScrubRecord::default());
    s.start(None, 100, 1).expect("start");
    s.pause(100).expect("pause");
    assert_eq!(s.paused_long(99 + DAY_S, 0), None);
    assert_eq!(s.paused_long(100 + DAY_S, 0), Some(DAY_S));
    assert_eq!((s.paused_long(159, 60), s.paused_long(160, 60)), (None, Some(60)));
    assert!(!s.note_paused(500));
    s.resume().expect("resume");
    assert!(s.paused_long(100 + DAY_S, 0).is_none() && !s.note_paused(500));
    // An older version did not note the time.
    let old = ScrubRecord { state: ScrubState::Paused, ..ScrubRecord::default() };
    let mut s = Scrub::new(old);
    assert_eq!(s.paused_long(100 + DAY_S, 0), None);
    assert!(s.note_paused(500));
    assert_eq!(s.paused_long(500 + DAY_S, 0), Some(DAY_S));
}

#[test]
fn a_part_that_was_passed_over_is_known_until_a_whole_scrub_passes_over_none() {
    let mut s = Scrub::new(ScrubRecord::default());
    let shown = |s: &Scrub| {
        let status = s.status(Instant::default(), 0, 0, 0, |_| String::new(), |_| String::new());
        (status.lost, status.passed_over, status.incomplete)
    };
    s.start(None, 100, 1).expect("start");
    s.lost(None);
    assert_eq!(shown(&s), (1, 1, true));
    assert!(s.complete(s.turn, 2));
    assert_eq!(shown(&s), (1, 1, true));
    s.start(Some(1), 100, 3).expect("start");
    assert_eq!(shown(&s), (0, 0, true));
    assert!(s.complete(s.turn, 4));
    assert_eq!(shown(&s), (0, 0, true), "it has read one device only");
    s.start(None, 100, 5).expect("start");
    s.cancel(6).expect("cancel");
    s.start(None, 100, 7).expect("start");
    assert_eq!(shown(&s), (0, 0, true));
    assert!(s.complete(s.turn, 8));
    assert_eq!(shown(&s), (0, 0, false));
}

#[test]
fn the_rate_is_that_of_the_last_seconds() {
    let mut s = Scrub::new(ScrubRecord::default());
    s.start(None, 1_000_000, 0).expect("start");
    let mut now = Instant::default().after(base::Duration::from_secs(100));
    for i in 0..200 {
        s.verified(now, if i < 100 { 10 } else { 1_000 });
        now = now.after(base::Duration::from_millis(100));
    }
    let rate = s.status(now, 0, 0, 0, |_| String::new(), |_| String::new()).rate;
    assert!((9_000..=10_500).contains(&rate), "{rate}");
    s.pause(1).expect("pause");
    assert_eq!(s.status(now, 0, 0, 0, |_| String::new(), |_| String::new()).rate, 0);
}

#[test]
fn the_total_is_what_was_verified_and_what_is_left_now() {
    let mut s = Scrub::new(ScrubRecord::default());
    let shown = |s: &Scrub, left: u64| {
        let status = s.status(Instant::default(), 0, 0, left, |_| "".into(), |_| "".into());
        (status.verified_bytes, status.all_bytes)
    };
    s.start(None, 100, 1).expect("start");
    assert_eq!(shown(&s, 100), (0, 100));
    // More was written meanwhile.
    s.verified(Instant::default(), 60);
    assert_eq!(shown(&s, 900), (60, 900), "what lies behind its place counts once");
    s.go_to(ScrubPlace { stage: ScrubStage::Groups, index: 1, block: 0 });
    assert_eq!(shown(&s, 840), (60, 900));
    s.note_left(840);
    assert_eq!(s.record().all, 900);
    s.pause(2).expect("pause");
    assert_eq!(shown(&s, 140), (60, 200), "and much was discarded");
    let mut s = Scrub::new(s.record().clone());
    assert_eq!(shown(&s, 240), (60, 300), "after a restart");
    s.resume().expect("resume");
    s.verified(Instant::default(), 20);
    assert_eq!(shown(&s, 10), (80, 80));
    assert!(s.complete(s.turn, 2));
    assert_eq!(shown(&s, 500), (80, 80), "it is over");
}
