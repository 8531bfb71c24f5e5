use std::borrow::Cow;
use std::collections::BTreeSet;

use model::cache::WritebackStatus;
use model::device::{Rot, SitsOut};
use model::moves::{MovesState, MovesStatus};
use model::scrub::LostBlocks;
use model::status::{PoolState, ServerStatus, TlsStatus};

use super::*;

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn in_pool(pool: PoolStatus) -> Vec<Problem> {
    problems(&Status { pool, ..Default::default() })
}

fn of_devices(devices: Vec<DeviceStatus>) -> Vec<Problem> {
    in_pool(PoolStatus { devices, ..Default::default() })
}

fn device(path: &str, state: DeviceState) -> DeviceStatus {
    DeviceStatus { path: path.to_owned(), id: "x".to_owned(), state, ..Default::default() }
}

fn cache(path: &str, state: CacheState) -> CacheStatus {
    CacheStatus { path: path.to_owned(), state, ..Default::default() }
}

fn pages(status: &Status) -> Vec<Cow<'static, str>> {
    problems(status).into_iter().map(|p| p.page).collect()
}

#[test]
fn a_healthy_server_has_no_problem() {
    let online = device("/a", DeviceState::Online);
    let writeback =
        WritebackStatus { lag_seconds: 30.0, max_lag_seconds: 30.0, ..Default::default() };
    let status = Status {
        pool: PoolStatus {
            capacity_bytes: 100,
            used_bytes: 80,
            available_bytes: 20,
            devices: vec![DeviceStatus { rot: Some(Rot { blocks: 9, since_s: 5 }), ..online }],
            ..Default::default()
        },
        cache: Some(CacheStatus { writeback, ..cache("/c", CacheState::Serving) }),
        ..Default::default()
    };
    assert_eq!(problems(&status), []);
    assert_eq!(problems(&Status::default()), []);
}

#[test]
fn a_pool_is_full_where_nothing_is_left_for_data() {
    let of = |used: u64, left: u64| {
        in_pool(PoolStatus {
            capacity_bytes: 100 << 20,
            used_bytes: used << 20,
            available_bytes: left << 20,
            ..Default::default()
        })
    };
    assert_eq!(of(80, 10), []);
    let told = |used, left| of(used, left).into_iter().map(|p| p.what).collect::<Vec<_>>();
    assert_eq!(told(80, 0), ["the pool is 80 % full, 0 B are left for data"]);
    // Of a small pool metadata keeps much: what is left for data counts.
    assert_eq!(told(80, 8), ["the pool is 80 % full, 8 MiB are left for data"]);
    assert_eq!(told(95, 2), ["the pool is 95 % full, 2 MiB are left for data"]);
    let todo = |most: u64| {
        let pool = PoolStatus {
            capacity_bytes: 4 << 30,
            used_bytes: 4 << 30,
            capacity_limit_bytes: most,
            ..Default::default()
        };
        in_pool(pool).remove(0).todo
    };
    assert!(todo(5 << 30).starts_with("add a device"), "{}", todo(5 << 30));
    let most = "devices give no more room, as the pool was made for 4 GiB at most";
    assert!(todo(4 << 30).contains(most), "{}", todo(4 << 30));
}

#[test]
fn lost_blocks_that_are_not_listed_are_told_too() {
    let todo = |listed: usize, more_lost: bool| {
        let lost_blocks = vec![LostBlocks::default(); listed];
        let scrub = PoolScrub { lost_blocks, more_lost, ..Default::default() };
        in_pool(PoolStatus { scrub, ..Default::default() }).into_iter().next().map(|p| p.todo)
    };
    assert_eq!(todo(0, false), None);
    assert!(todo(1, false).is_some_and(|t| !t.contains("and more")));
    assert!(todo(1, true).is_some_and(|t| t.contains("and more: run a scrub")));
    assert!(todo(0, true).is_some_and(|t| t.contains("forebay scrub start --wait")));
}

#[test]
fn a_spare_is_promised() {
    let missing = |spare: Option<SpareStatus>| {
        let device = DeviceStatus { spare, ..device("", DeviceState::Missing) };
        of_devices(vec![device])[0].what.clone()
    };
    assert_eq!(missing(None), "x is missing");
    let promise = missing(Some(SpareStatus { path: some("/s"), in_s: 300 }));
    assert_eq!(promise, "x is missing; the spare /s takes its place in 5 min");
    assert!(missing(Some(SpareStatus::default())).contains("no spare in use has room"));
}

#[test]
fn a_spare_that_was_taken_is_told() {
    let told = |left: u64| {
        let taken = SpareTaken { spare: "/s".to_owned(), device: "x".to_owned(), at: 86_400 };
        let spares = SparesStatus { left, taken_total: 1, taken: vec![taken] };
        in_pool(PoolStatus { spares, ..Default::default() }).remove(0).what
    };
    let taken = "the spare /s took the place of x on 1970-01-02";
    assert!(told(0).starts_with(taken), "{}", told(0));
    assert!(told(0).ends_with("; no spare is left") && told(2).ends_with("2 spares are left"));
}

#[test]
fn what_is_said_of_a_device_fits_what_will_happen() {
    let of = |state: DeviceState, tried_again: bool, leaving: &[&str]| {
        let devices = vec![DeviceStatus { tried_again, ..device("/a", state) }];
        let leaving = leaving.iter().map(|&one| one.to_owned()).collect();
        let moves = MovesStatus { leaving, ..Default::default() };
        in_pool(PoolStatus { devices, moves, ..Default::default() }).remove(0)
    };
    for state in [DeviceState::Failed, DeviceState::Stale] {
        assert!(of(state, true, &[]).what.contains("by itself"));
        let given_up = of(state, false, &[]);
        assert!(given_up.what.contains("not tried again by itself"), "{given_up:?}");
        assert!(given_up.todo.contains("forebay device online /a"), "{given_up:?}");
    }
    assert!(of(DeviceState::Failed, true, &[]).todo.contains("forebay device online /a"));
    let blank = DeviceStatus {
        rot: Some(Rot { blocks: MUCH_ROT, since_s: 1 }),
        write_trouble: some("full"),
        sits_out: Some(SitsOut { seconds_left: 1, why: SitsOutWhy::Slow }),
        ..device("/a b", DeviceState::Failed)
    };
    for one in [of_device(&blank, &[]), of_rot(&blank), of_writes(&blank), of_source(&blank)] {
        let Some(one) = one else { panic!("{blank:?}") };
        assert!(one.todo.contains("'/a b'") && one.what.contains("/a b"), "{one:?}");
    }
    let replaced = of(DeviceState::Missing, false, &["/a"]);
    assert!(replaced.what.contains("leaves the pool"), "{replaced:?}");
    assert!(replaced.todo.contains("forebay device cancel"), "{replaced:?}");
    assert!(!replaced.todo.contains("NEW"), "{replaced:?}");
}

#[test]
fn an_action_is_offered_where_nothing_has_to_be_decided() {
    let of = |state: DeviceState, tried_again: bool, leaving: &[&str]| {
        let devices = vec![DeviceStatus { tried_again, ..device("/a", state) }];
        let leaving = leaving.iter().map(|&one| one.to_owned()).collect();
        let moves = MovesStatus { leaving, ..Default::default() };
        let told = in_pool(PoolStatus { devices, moves, ..Default::default() }).remove(0);
        assert_eq!(told.device, some("x"), "{told:?}");
        told.action
    };
    let online = Some(ProblemAction::DeviceOnline);
    for state in [DeviceState::Offline, DeviceState::Flapping, DeviceState::Failed] {
        assert_eq!(of(state, false, &[]), online, "{state}");
        assert_eq!(of(state, false, &["/a"]), None, "{state}: it leaves");
    }
    assert_eq!(of(DeviceState::Stale, false, &[]), online);
    assert_eq!(of(DeviceState::Stale, true, &[]), None, "nothing has to be done");
    assert_eq!(of(DeviceState::Missing, false, &[]), None, "it is not at its place");
    let mut pool = PoolStatus::default();
    pool.scrub.paused_long_s = Some(86_400);
    pool.moves = MovesStatus {
        state: MovesState::Paused,
        behind: vec!["/b".to_owned()],
        ..Default::default()
    };
    let actions: Vec<_> = in_pool(pool).into_iter().map(|one| (one.page, one.action)).collect();
    let expected = [
        ("scrub-paused".into(), Some(ProblemAction::ScrubResume)),
        ("moves-paused".into(), Some(ProblemAction::MovesResume)),
    ];
    assert_eq!(actions, expected);
}

#[test]
fn a_device_that_does_not_answer_is_told_of() {
    let of = |silent_ms: f64| {
        let queue = QueueStatus { silent_ms, ..Default::default() };
        let online = device("/a b", DeviceState::Online);
        let devices = vec![DeviceStatus { queue: Some(queue.clone()), ..online }];
        problems(&Status {
            pool: PoolStatus { devices, ..Default::default() },
            cache: Some(CacheStatus { queue, ..cache("/c", CacheState::Serving) }),
            ..Default::default()
        })
    };
    assert_eq!(of(9_999.0), []);
    let all = of(36_400.0);
    assert!(all.iter().all(|p| p.page == "device-silent"), "{all:?}");
    let told: Vec<&str> = all.iter().map(|p| p.what.as_str()).collect();
    let said =
        ["/c", "/a b"].map(|at| format!("{at} has not answered for 36 s; what needs it waits"));
    assert_eq!(told, said);
    let others = all.iter().map(|p| p.todo.contains("forebay device offline '/a b'"));
    assert_eq!(others.collect::<Vec<_>>(), [false, true], "a cache is no device of the pool");
}

/// A status with most of what can be wrong, and others with the rest.
fn all_that_can_be_wrong() -> (Status, [Box<Status>; 3]) {
    let of = |state| device("/a", state);
    let online = || of(DeviceState::Online);
    let sits_out =
        |why| DeviceStatus { sits_out: Some(SitsOut { why, seconds_left: 90 }), ..online() };
    let silent = QueueStatus { silent_ms: 20_000.0, ..Default::default() };
    let scrub = PoolScrub {
        lost_blocks: vec![LostBlocks::default()],
        passed_over: 2,
        incomplete: true,
        paused_long_s: Some(86_400),
        ..Default::default()
    };
    let pool = PoolStatus {
        trouble: some("flush: EIO"),
        capacity_bytes: 100,
        used_bytes: 90,
        devices: vec![
            of(DeviceState::Missing),
            of(DeviceState::Failed),
            of(DeviceState::Flapping),
            of(DeviceState::Stale),
            of(DeviceState::Offline),
            sits_out(SitsOutWhy::Slow),
            sits_out(SitsOutWhy::Errs),
            DeviceStatus { rot: Some(Rot { blocks: 10, since_s: 7200 }), ..online() },
            DeviceStatus { write_trouble: some("no space"), ..online() },
            DeviceStatus { queue: Some(silent), ..online() },
        ],
        scrub,
        moves: MovesStatus {
            state: MovesState::Waiting,
            trouble: some("waiting for room"),
            ..Default::default()
        },
        spares: SparesStatus {
            left: 1,
            taken: vec![SpareTaken { spare: "/s".to_owned(), device: "x".to_owned(), at: 9 }],
            ..Default::default()
        },
        ..Default::default()
    };
    let kept = KeptStatus { volume: "a b".to_owned(), id: 1, blocks: 1, why: "lost".to_owned() };
    let failed = CacheStatus {
        bad_blocks: vec![(1, 2)],
        kept: vec![kept],
        writeback: WritebackStatus {
            lag_seconds: 90.0,
            max_lag_seconds: 30.0,
            error: some("full"),
            ..Default::default()
        },
        ..cache("/c", CacheState::Failed)
    };
    let most = Status {
        tls: Some(TlsStatus { refused: some("it is gone"), files: Vec::new() }),
        pool,
        cache: Some(failed),
        ..Default::default()
    };
    let paused = MovesStatus {
        state: MovesState::Paused,
        leaving: vec!["/a".to_owned()],
        ..Default::default()
    };
    let full = CacheStatus { error: some("write: full"), ..cache("/c", CacheState::Serving) };
    let rest = [
        Box::new(Status {
            pool: PoolStatus { moves: paused, ..Default::default() },
            commit: CommitStatus { failed: 2, ..Default::default() },
            cache: Some(cache("/c", CacheState::Aside)),
            ..Default::default()
        }),
        Box::new(Status {
            pool: PoolStatus { answers_at_risk: some("/dev/shm: full"), ..Default::default() },
            cache: Some(full),
            ..Default::default()
        }),
        Box::new(Status {
            server: ServerStatus {
                crowds: vec![Crowd {
                    kind: ConnectionKind::NbdTcp,
                    from: "10.0.0.1:7".into(),
                    refused: false,
                    seconds_ago: 3,
                }],
                ..Default::default()
            },
            drift: Some(ConfigurationDrift {
                unnamed_devices: vec!["/c".into()],
                ..Default::default()
            }),
            pool: PoolStatus {
                state: PoolState::Failed,
                trouble: some("another process"),
                other_writer: true,
                ..Default::default()
            },
            ..Default::default()
        }),
    ];
    (most, rest)
}

/// Every state that can be shown has a page in docs/operations.md, and says what to type.
#[test]
fn every_problem_has_a_page() {
    let (status, rest) = all_that_can_be_wrong();
    let mut found = pages(&status);
    found.extend(rest.iter().flat_map(|status| pages(status)));
    let lines = include_str!("../../../../docs/operations.md").lines();
    let sections: BTreeSet<&str> =
        lines.filter_map(|l| l.strip_prefix("## `")?.strip_suffix('`')).collect();
    assert_eq!(found.len(), 31);
    let kept = problems(&status).into_iter().find(|p| p.page == "volume-unreachable").unwrap();
    assert_eq!(kept.what, "1 block of volume a b in the cache cannot come to the pool: lost");
    assert!(kept.todo.ends_with("forebay volume delete 'a b'"), "{}", kept.todo);
    let rots = problems(&status).into_iter().find(|p| p.page == "device-rots").unwrap().what;
    assert_eq!(rots, "/a: 10 blocks were not what was written, in the last 2 h 0 min");
    let rot = Some(Rot { blocks: 10, since_s: 0 });
    let now = DeviceStatus { rot, ..device("/a", DeviceState::Online) };
    assert!(of_rot(&now).unwrap().what.ends_with("what was written, just now"));
    let shown: BTreeSet<&str> = found.iter().map(|page| &**page).collect();
    assert_eq!(shown, sections, "what is shown, and the sections of docs/operations.md");
}
