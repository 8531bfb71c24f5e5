use super::*;

fn change(op: u64, mask: u8, start: u64, end: u64) -> Change {
    let value = Value::Write(op);
    Change { op, mask, value, start, end, ok: end != FLYING, durable: false, era: 1 }
}

fn seen(ids: [u64; 8]) -> SeenSectors {
    ids.map(|id| Some(if id == 0 { SectorContent::Zero } else { SectorContent::Write(id) }))
}

fn block(changes: &[Change]) -> Block {
    Block { changes: changes.to_vec(), ..Block::new() }
}

const LIVE: View = View { era: 1, from: 100 };
const AFTER_CRASH: View = View { era: 2, from: 100 };

fn verdicts(b: &Block, view: View, table: &[([u64; 8], bool)]) {
    for (ids, possible) in table {
        let want = if *possible { Verdict::Explained } else { Verdict::Impossible };
        assert_eq!(b.allows(&seen(*ids), view), want, "{ids:?} in {view:?} of {b:?}");
    }
}

#[test]
fn writes_in_order_show_the_last_and_after_a_crash_any() {
    let b = block(&[change(1, WHOLE, 1, 2), change(2, WHOLE, 3, 4)]);
    verdicts(&b, LIVE, &[([2; 8], true), ([1; 8], false), ([0; 8], false)]);
    verdicts(&b, AFTER_CRASH, &[([2; 8], true), ([1; 8], true), ([0; 8], true)]);
    verdicts(
        &b,
        AFTER_CRASH,
        &[([1, 1, 1, 1, 2, 2, 2, 2], false), ([0, 2, 2, 2, 2, 2, 2, 2], false)],
    );
}

#[test]
fn a_flushed_write_stays() {
    let mut b = block(&[change(1, WHOLE, 1, 2), change(2, WHOLE, 3, 4)]);
    b.changes[0].durable = true;
    verdicts(&b, AFTER_CRASH, &[([2; 8], true), ([1; 8], true), ([0; 8], false)]);
    b.changes[1].durable = true;
    verdicts(&b, AFTER_CRASH, &[([2; 8], true), ([1; 8], false)]);
    b.settle(50);
    assert!(b.changes.is_empty());
    verdicts(&b, AFTER_CRASH, &[([2; 8], true), ([1; 8], false)]);
}

#[test]
fn parts_of_a_block_come_in_their_order() {
    // 1 writes the first half, then 2 the second.
    let b = block(&[change(1, 0x0F, 1, 2), change(2, 0xF0, 3, 4)]);
    let (none, first, second, both) =
        ([0; 8], [1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 2, 2, 2, 2], [1, 1, 1, 1, 2, 2, 2, 2]);
    verdicts(&b, LIVE, &[(both, true), (first, false), (second, false), (none, false)]);
    verdicts(&b, AFTER_CRASH, &[(both, true), (first, true), (second, false), (none, true)]);
    // A read that began before the second was answered.
    verdicts(
        &b,
        View { era: 1, from: 4 },
        &[(both, true), (first, true), (second, false), (none, false)],
    );
}

#[test]
fn concurrent_writes_come_in_any_order_but_never_mixed() {
    let b = block(&[change(1, WHOLE, 1, 10), change(2, WHOLE, 2, 9)]);
    verdicts(
        &b,
        LIVE,
        &[([1; 8], true), ([2; 8], true), ([0; 8], false), ([1, 2, 1, 1, 1, 1, 1, 1], false)],
    );
    let b = block(&[change(1, 0x3F, 1, 10), change(2, 0xFC, 2, 9)]);
    let (one, two) = ([1, 1, 1, 1, 1, 1, 2, 2], [1, 1, 2, 2, 2, 2, 2, 2]);
    verdicts(&b, LIVE, &[(one, true), (two, true), ([1, 1, 1, 1, 2, 2, 2, 2], false)]);
    // Three that form a ring: each sector's winner would have to come after the next one's.
    let ring = block(&[change(1, 0b011, 1, 10), change(2, 0b110, 1, 10), change(3, 0b101, 1, 10)]);
    verdicts(&ring, LIVE, &[([1, 2, 3, 0, 0, 0, 0, 0], false), ([3, 2, 3, 0, 0, 0, 0, 0], true)]);
}

#[test]
fn one_in_flight_may_be_under_one_that_is_done() {
    let flying = change(2, WHOLE, 3, FLYING);
    let b = block(&[
        change(1, WHOLE, 1, 10),
        flying,
        change(3, 0xE0, 5, 9),
        change(4, WHOLE, 20, FLYING),
    ]);
    verdicts(
        &b,
        LIVE,
        &[([2, 2, 2, 2, 2, 3, 3, 3], true), ([1, 1, 1, 1, 1, 3, 3, 3], true), ([0; 8], false)],
    );
    verdicts(&b, LIVE, &[([4; 8], true), ([1, 1, 1, 1, 1, 2, 2, 2], false)]);
}

#[test]
fn what_failed_or_flies_is_open() {
    let mut failed = change(1, WHOLE, 1, 2);
    failed.ok = false;
    let flying = change(2, WHOLE, 3, FLYING);
    let b = block(&[failed, flying]);
    verdicts(&b, LIVE, &[([0; 8], true), ([1; 8], true), ([2; 8], true), ([3; 8], false)]);
}

#[test]
fn a_crash_of_an_earlier_boot_stays_open_under_later_writes() {
    let mut b = block(&[change(1, WHOLE, 1, 2), change(2, WHOLE, 3, 4)]);
    let later = Change { era: 2, ..change(3, 0x01, 10, 11) };
    b.changes.push(later);
    let on = |id: u64| [3, id, id, id, id, id, id, id];
    verdicts(&b, AFTER_CRASH, &[(on(0), true), (on(1), true), (on(2), true), ([2; 8], false)]);
    // A second crash may take the later write, too.
    verdicts(&b, View { era: 3, from: 100 }, &[(on(1), true), ([1; 8], true), ([3; 8], false)]);
}

#[test]
fn a_read_pins_what_a_crash_left_open() {
    let mut b = block(&[change(1, WHOLE, 1, 2), change(2, WHOLE, 3, 4)]);
    b.pin(&seen([1; 8]), LIVE, 100);
    assert_eq!(b.changes.len(), 2, "the same boot may still lose it");
    b.pin(&seen([1; 8]), AFTER_CRASH, 100);
    verdicts(&b, AFTER_CRASH, &[([1; 8], true), ([2; 8], false)]);
    assert_eq!(b.takes(), (true, true));
}

#[test]
fn sectors_that_were_not_read_may_hold_anything() {
    let b = block(&[change(1, WHOLE, 1, 2)]);
    let mut part = seen([1; 8]);
    part[3] = None;
    assert_eq!(b.allows(&part, LIVE), Verdict::Explained);
    part[4] = Some(SectorContent::Zero);
    assert_eq!(b.allows(&part, LIVE), Verdict::Impossible);
}

#[test]
fn readers_keep_what_they_may_have_seen() {
    let mut b = block(&[change(1, WHOLE, 1, 2), change(2, WHOLE, 10, 12)]);
    b.changes.iter_mut().for_each(|c| c.durable = true);
    b.settle(5);
    verdicts(&b, View { era: 1, from: 5 }, &[([1; 8], true), ([2; 8], true)]);
    // A flush in the middle of the read makes nothing come before it.
    verdicts(&b, View { era: 1, from: 11 }, &[([1; 8], true), ([2; 8], true)]);
    b.settle(20);
    verdicts(&b, View { era: 1, from: 20 }, &[([1; 8], false), ([2; 8], true)]);
}
