//! Waiting for what a pool does in the background, and what its devices are.

use base::Duration;
use model::device::DeviceState;
use model::moves::MovesState;
use model::scrub::{PoolScrub, ScrubState};
use pool::Pool;
use rt::Rt;

const LOOK: Duration = Duration::from_millis(10);
/// A minute: more than a simulated pool needs.
const LOOKS: u32 = 6_000;

/// Waits until nothing is left to be moved.
pub async fn moved(rt: &Rt, pool: &Pool) {
    for _ in 0..LOOKS {
        if pool.moves().moves_status().state == MovesState::None {
            return;
        }
        rt.sleep(LOOK).await;
    }
    panic!("the moves do not end: {:?}", pool.moves().moves_status());
}

/// Waits until the scrub has ended or is paused. Returns its result.
pub async fn scrubbed(rt: &Rt, pool: &Pool) -> PoolScrub {
    for _ in 0..LOOKS {
        let status = pool.scrubs().scrub_status().await;
        if status.state != ScrubState::Running {
            return status;
        }
        rt.sleep(LOOK).await;
    }
    panic!("the scrub does not end: {:?}", pool.scrubs().scrub_status().await);
}

/// The paths and states of all devices.
pub fn device_states(pool: &Pool) -> Vec<(String, DeviceState)> {
    pool.status().pool.devices.into_iter().map(|d| (d.path, d.state)).collect()
}
