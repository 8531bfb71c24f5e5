//! What finds no room only beside changes that are under way waits for these.

use std::cell::Cell;
use std::rc::Rc;

use base::{BLOCK, Duration, ErrorKind, Lba, VolumeId};
use rt::{Order, Rt};
use sim::{DiskModel, World};

use super::*;
use crate::Pool;
use crate::space::Run;
use crate::{CreateOptions, DeviceFile, Settings};

const MIB: u64 = 1 << 20;
const DISK: u64 = 16 * MIB;

async fn put(pool: &Pool, lba: u64, blocks: usize) -> Result<()> {
    let data = pool.bufs().zeroed(blocks * BLOCK).freeze();
    pool.write(VolumeId(1), Lba(lba), &data).await
}

/// A pool in which all block groups are formed, and half of each data group is free. Metadata has
/// one group.
async fn open(rt: &Rt, files: Vec<DeviceFile>) -> Pool {
    let options = CreateOptions { name: "tank".into(), copies: 1, group_bytes: Some(MIB) };
    crate::create(rt, &files, &options, &[[1; 16], [2; 16]]).await.expect("create");
    let pool = Pool::open(rt, files, Settings::default()).await.expect("open").0;
    pool.create_volume("v", 1 << 30, 4096).await.expect("volume");
    put(&pool, 0, 10).await.expect("write");
    pool.commit().await.expect("commit");
    pool.flows().room.empty_limbo().await;
    {
        let mut st = pool.core().state_mut();
        let mut taken = Vec::new();
        while let Alloc::Got(run) = st.alloc(GroupKind::Data, 256) {
            taken.push(run);
        }
        for run in taken {
            st.space.release(Run { len: run.len / 2, ..run });
        }
        assert_eq!(st.space.groups().formable(&st.devices), 0);
    }
    pool
}

/// Torture's seed 60001630. The room for its own nodes kept a write from taking blocks beside other
/// changes. When it had given that back, nothing seemed to be in its way: it did not wait for the
/// others, and was refused. A reservation never waited for changes.
#[test]
fn what_finds_no_room_only_beside_other_changes_waits_for_these() {
    let world = World::new(1);
    let file = world.add_disk(DiskModel::nvme(DISK));
    let files = vec![DeviceFile { path: "disk".into(), file, size_bytes: DISK }];
    let rt = Rt::new(world.backend(), Order::Seeded(1), 256);
    let (on, done) = (rt.clone(), Rc::new(Cell::new(0)));
    let body = async move {
        let pool = open(&on, files).await;
        let _reserved = pool.reserve(10).expect("room");
        let mut held = Vec::new();
        {
            let st = pool.core().state();
            while st.leaves_reserved(1) {
                held.push(st.space.claims().reserve_nodes());
                assert!(held.len() < 10, "changes that are under way do not count");
            }
            drop(held.pop());
            assert!(st.leaves_reserved(1) && !held.is_empty());
        }
        let (p, told) = (pool.clone(), done.clone());
        let write = on.spawn(async move {
            let outcome = put(&p, 1000, 1).await;
            told.set(1);
            outcome
        });
        on.sleep(Duration::from_secs(1)).await;
        assert_eq!(done.get(), 0, "the write waits");
        drop(held.pop());
        write.await.expect("it ends").expect("there is room by now");
        held.clear();

        pool.commit().await.expect("commit");
        while pool.reserve(1).is_ok() {
            held.push(pool.core().state().space.claims().reserve_nodes());
            assert!(held.len() < 10, "changes that are under way do not count");
        }
        let (p, told) = (pool.clone(), done.clone());
        let reserve = on.spawn(async move {
            let outcome = p.reserve_beside_changes(1).await;
            told.set(2);
            outcome
        });
        on.sleep(Duration::from_secs(1)).await;
        assert_eq!(done.get(), 1, "the reservation waits");
        assert!(pool.core().state().space.supply().holds_direct(), "others could begin for ever");
        drop(held.pop());
        drop(reserve.await.expect("it ends").expect("there is room by now"));
        assert!(!pool.core().state().space.supply().holds_direct());
        held.clear();
        let none = pool.reserve_beside_changes(1 << 30).await;
        assert_eq!(none.err().map(|e| e.kind), Some(ErrorKind::NoSpace), "nothing to wait for");
    };
    let out = rt.block_on(body);
    rt.kill();
    out.expect("alive");
}
