//! What commands about devices say.

use model::device::DeviceErrors;
use model::moves::{MovesEnd, MovesOutcome};

use super::*;

const LOOK: Look = Look { columns: 80, colour: false };

fn of_state(state: MovesState) -> MovesStatus {
    MovesStatus { state, ..MovesStatus::default() }
}

fn of_path(path: &str) -> DeviceStatus {
    DeviceStatus { path: path.into(), ..DeviceStatus::default() }
}

#[test]
fn it_reads_as_a_person_would_expect() {
    let moves = MovesStatus {
        leaving: vec!["/a".into()],
        behind: vec!["/b".into()],
        behind_groups: 3,
        left_bytes: 1 << 30,
        copied_bytes: 5,
        rate: 1 << 20,
        left_s: Some(1024),
        trouble: Some("waiting for a device with room".into()),
        ..of_state(MovesState::Waiting)
    };
    let shown = progress(&moves);
    let parts = [
        "waiting: at most 1 GiB left",
        "/a will be removed",
        "/b is brought",
        "1 MiB/s",
        "with room",
    ];
    for part in parts {
        assert!(shown.contains(part), "{part} is not in {shown}");
    }
    assert_eq!(line(&moves), Some(shown));
    let paused = MovesStatus { left_bytes: 1 << 20, ..of_state(MovesState::Paused) };
    let shown = line(&paused).expect("a line");
    assert!(shown.ends_with("1 MiB left to copy; forebay device resume lets them go on"));
    let none = MovesStatus { copied_bytes: 2048, ..of_state(MovesState::None) };
    assert_eq!(progress(&none), "nothing left to move, 2 KiB copied");
    assert_eq!(line(&none), None);
    let end = MovesEnd { outcome: MovesOutcome::Cancelled, ended_at: 86_400, copied_bytes: 2048 };
    let ended = MovesStatus { ended: Some(end), ..none.clone() };
    assert_eq!(
        progress(&ended),
        "nothing left to move, 2 KiB copied (cancelled 1970-01-02 00:00:00 UTC)"
    );
    // Where something else was done, that nothing moves would read as if nothing was.
    assert_eq!(under_way(&none), Some(progress(&none)));
    let idle = of_state(MovesState::None);
    assert_eq!((progress(&idle).as_str(), under_way(&idle)), ("nothing to move", None));
    let missing = DeviceStatus {
        id: "x".into(),
        state: DeviceState::Missing,
        errors: DeviceErrors { read: 2, ..DeviceErrors::default() },
        ..DeviceStatus::default()
    };
    let pool =
        PoolStatus { copies: 2, moves: none, devices: vec![missing], ..PoolStatus::default() };
    let shown = list(&pool, &LOOK);
    assert!(shown.contains("missing") && shown.contains("copies of every block: 2"), "{shown}");
}

#[test]
fn what_has_come_of_it_is_told() {
    let begun = |replaces: &str| DeviceMoves {
        device: "/c".into(),
        replaces: Some(replaces.into()),
        ..DeviceMoves::default()
    };
    let (gone, begun) = (begun("fb3c67df-f111-4703-ab55-386c0277c152"), begun("/b"));
    let pool = |paths: &[&str]| PoolStatus {
        devices: paths.iter().map(|path| of_path(path)).collect(),
        copies: 2,
        ..PoolStatus::default()
    };
    let said = DeviceChange::Added.told(&begun, &pool(&["/a", "/c"]));
    assert_eq!(said, "/c is in the pool (2 devices, 2 copies)");
    let said = DeviceChange::Replaced.told(&begun, &pool(&["/a", "/b", "/c"]));
    assert!(said.contains("/b is in use until it is out") && said.contains("3 dev"), "{said}");
    let said = DeviceChange::Replaced.told(&begun, &pool(&["/a", "/c"]));
    assert!(said.starts_with("/c is in the pool; /b is out of the pool, and can"), "{said}");
    let id = "fb3c67df-f111-4703-ab55-386c0277c152";
    let said = DeviceChange::Replaced.told(&gone, &pool(&["/a", "/c"]));
    assert_eq!(said, format!("/c is in the pool; {id} is out of the pool (2 devices, 2 copies)"));
    let said = DeviceChange::Removed.told(&begun, &pool(&["/a"]));
    assert!(said.starts_with("/c is out") && said.ends_with("(1 device, 2 copies)"), "{said}");
}

#[test]
fn a_rebalance_is_offered_where_there_is_something_to_spread() {
    let pool = |allocated_bytes: u64, state| PoolStatus {
        moves: of_state(state),
        devices: vec![DeviceStatus { allocated_bytes, ..of_path("/a") }, of_path("/b")],
        ..PoolStatus::default()
    };
    let next = DeviceChange::Added.next(&pool(1, MovesState::None)).expect("a hint");
    assert!(next.ends_with("forebay device rebalance\n"), "{next}");
    assert_eq!(DeviceChange::Added.next(&pool(0, MovesState::None)), None, "nothing is stored");
    assert_eq!(DeviceChange::Added.next(&pool(1, MovesState::Running)), None, "data moves already");
    assert_eq!(DeviceChange::Spare.next(&pool(1, MovesState::None)), None, "a spare stays empty");
    assert_eq!(DeviceChange::Replaced.next(&pool(1, MovesState::None)), None);
}

#[test]
fn it_is_said_that_a_pool_does_not_become_larger() {
    let most = 4u64 << 30;
    let pool = |has: u64| PoolStatus {
        capacity_bytes: has << 30,
        capacity_limit_bytes: most,
        ..PoolStatus::default()
    };
    assert_eq!(made_for(&pool(3), 3 << 30), None);
    for (has, usable) in [(4, 0), (3, 4 << 30)] {
        let said = made_for(&pool(has), usable).expect("a line");
        assert!(said.starts_with("the pool was made for 4 GiB at most"), "{said}");
    }
    assert_eq!(made_for(&PoolStatus::default(), 0), None, "nothing is known of the pool");
}

#[test]
fn a_bar_shows_what_is_copied_of_all() {
    let moves = MovesStatus {
        left_bytes: 3 << 20,
        copied_bytes: 1 << 20,
        behind_groups: 2,
        trouble: Some("slow".into()),
        ..of_state(MovesState::Running)
    };
    let got = step(&moves);
    assert_eq!((got.done, got.total, got.rate), (1 << 20, 4 << 20, None));
    assert_eq!(
        (got.what.as_str(), got.note.as_str()),
        ("catching up", "2 block groups left, slow")
    );
    assert_eq!(step(&MovesStatus::default()).what, "copying");
    let last = MovesStatus { behind_groups: 1, ..of_state(MovesState::Running) };
    assert_eq!(step(&last).note, "1 block group left");
}

#[test]
fn waiting_without_progress_ends_with_what_to_type() {
    let moves = |state, copied_bytes: u64| MovesStatus {
        copied_bytes,
        leaving: vec!["/a".into()],
        trouble: Some("waiting for a device with room".into()),
        ..of_state(state)
    };
    let mut waited_for = MoveWait::default();
    let looks = |waited_for: &mut MoveWait, state, copied| {
        (0..100).position(|_| waited_for.is_over(&moves(state, copied)))
    };
    assert_eq!(looks(&mut waited_for, MovesState::Running, 0), None);
    assert_eq!(looks(&mut waited_for, MovesState::Waiting, 0), Some(MOST_LOOKS as usize - 1));
    assert!(!waited_for.is_over(&moves(MovesState::Waiting, 1)), "it has come on");
    // A copy that fails again and again is no progress, and is not given up while it copies.
    let mut waited_for = MoveWait::default();
    let mut tries = (0..100).map(|_| {
        let copies = (1..=30).any(|n| waited_for.is_over(&moves(MovesState::Waiting, n)));
        let fails = (0..10).any(|_| waited_for.is_over(&moves(MovesState::Waiting, 0)));
        (copies, fails)
    });
    assert_eq!(tries.position(|of| of == (false, true)), Some(1));
    assert_eq!(tries.next(), Some((true, true)), "it stays so");
    let mut further = MoveWait::default();
    for n in (1..100).flat_map(|n| [n, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]) {
        assert!(!further.is_over(&moves(MovesState::Waiting, n)), "each try comes further");
    }
    let text = ended(&moves(MovesState::Waiting, 0)).expect_err("it waits").to_string();
    for part in ["waiting for a device with room", "forebay device add", "forebay device cancel"] {
        assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
    }
    let text = ended(&moves(MovesState::Paused, 0)).expect_err("it rests").to_string();
    assert!(text.contains("forebay device resume"), "{text}");
    assert_eq!(ended(&moves(MovesState::None, 0)), Ok(()));
}

#[test]
fn ids_stand_below_where_there_is_no_room() {
    let id = "fb3c67df-f111-4703-ab55-386c0277c152";
    let device = |path: &str| DeviceStatus {
        id: id.into(),
        allocated_bytes: 1023 << 20,
        capacity_bytes: 1023 << 40,
        ..of_path(path)
    };
    let pool = |path: &str| PoolStatus { devices: vec![device(path)], ..PoolStatus::default() };
    let short = list(&pool("/a"), &LOOK);
    assert!(short.lines().nth(1).is_some_and(|line| line.ends_with(id)), "{short}");
    let long = list(&pool(&format!("/{}", "x".repeat(90))), &LOOK);
    assert!(long.contains(&format!("\n  id {id}\n")) && long.contains('…'), "{long}");
    assert!(long.lines().all(|line| line.chars().count() <= 80), "{long}");
}
