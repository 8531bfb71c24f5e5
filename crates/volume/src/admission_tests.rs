use std::num::NonZeroU32;

use base::Duration;
use rt::Order;
use sim::World;

use super::*;

const ONE: VolumeId = VolumeId(1);
const TWO: VolumeId = VolumeId(2);

fn limit(iops: u32) -> VolumeLimit {
    let (iops, burst_ms) = (NonZeroU32::new(iops), NonZeroU32::MIN);
    VolumeLimit { iops, bytes_per_second: None, burst_ms }
}

fn run<F: Future<Output = ()> + 'static>(body: impl FnOnce(Rt, Admission) -> F) {
    let world = World::new(1);
    let rt = Rt::new(world.backend(), Order::Seeded(1), 16);
    let door = Admission::new(&rt);
    assert_eq!(rt.block_on(body(rt.clone(), door)), Some(()));
}

/// So many requests, one after the other; how long that takes.
async fn requests(rt: Rt, door: Admission, volume: VolumeId, n: u32) -> Duration {
    let since = rt.now();
    for _ in 0..n {
        drop(door.admit(volume, Size::whole(4096)).await);
    }
    rt.now().since(since)
}

#[test]
fn a_limited_volume_waits_and_another_does_not() {
    run(|rt, door| async move {
        door.set_limit(ONE, Some(&limit(10)));
        let slow = rt.spawn(requests(rt.clone(), door.clone(), ONE, 21));
        assert_eq!(requests(rt.clone(), door.clone(), TWO, 1000).await, Duration::ZERO);
        assert_eq!(slow.await, Some(Duration::from_secs(2)));
        assert_eq!(door.waits(), WaitCounts { limited: 20, shared: 0, waiting: 0 });
    });
}

#[test]
fn a_change_wakes_those_that_wait() {
    run(|rt, door| async move {
        door.know(ONE, &limit(1));
        let slow = rt.spawn(requests(rt.clone(), door.clone(), ONE, 100));
        rt.sleep(Duration::from_millis(500)).await;
        door.set_limit(ONE, Some(&limit(1000)));
        rt.sleep(Duration::from_millis(50)).await;
        door.set_limit(ONE, None);
        let took = slow.await.unwrap();
        assert!(
            took >= Duration::from_millis(500) && took < Duration::from_millis(560),
            "{took:?}"
        );
        // What was limited when the volume was opened for the first time counts, not what it was.
        door.set_limit(ONE, Some(&limit(2)));
        door.know(ONE, &limit(1000));
        assert!(requests(rt.clone(), door.clone(), ONE, 5).await >= Duration::from_millis(1900));
    });
}

#[test]
fn an_open_door_lets_all_in() {
    run(|rt, door| async move {
        door.set_limit(ONE, Some(&limit(1)));
        let slow: Vec<_> =
            (0..9).map(|_| rt.spawn(requests(rt.clone(), door.clone(), ONE, 9))).collect();
        rt.sleep(Duration::from_millis(10)).await;
        door.open();
        for one in slow {
            assert_eq!(one.await, Some(Duration::from_millis(10)));
        }
    });
}

#[test]
fn a_task_that_is_gone_holds_up_none_behind_it() {
    run(|rt, door| async move {
        door.set_limit(ONE, Some(&limit(100)));
        drop(door.admit(ONE, Size::whole(0)).await);
        let mut gone: Vec<_> = (0..5).map(|_| Box::pin(door.admit(ONE, Size::whole(0)))).collect();
        for waiting in &mut gone {
            let first = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(waiting.as_mut().poll(cx).is_pending())
            });
            assert!(first.await);
        }
        drop(gone);
        assert_eq!(requests(rt.clone(), door.clone(), ONE, 1).await, Duration::from_millis(60));
        assert_eq!(door.waits().waiting, 0);
    });
}
