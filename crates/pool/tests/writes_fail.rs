//! A device that the pool cannot do without is not dropped when a write to it fails. The status
//! says so until one succeeds.

use base::{IoError, Lba};
use testkit::{Done, MIB, Mirror, blocks, open, writes_to};

#[test]
fn the_status_tells_of_writes_that_fail_until_one_succeeds() {
    for error in [IoError::IO, IoError::NO_SPACE] {
        let bench = Mirror::new(6, (1, 1), |pool| async move {
            pool.create_volume("v", 64 * MIB, 4096).await.expect("volume")
        });
        let (rules, id, only) = (bench.rules.clone(), bench.volume, bench.files[0].file);
        bench.run(|rt, files| async move {
            let pool = open(&rt, files).await;
            let told = |pool: &pool::Pool| {
                let device = pool.status().pool.devices.remove(0);
                assert_eq!(device.state, "online");
                device.write_trouble
            };
            assert_eq!(told(&pool), None);
            rules.set(move |op| writes_to(op, only).then_some((error, Done::No)));
            pool.write(id, Lba(0), &blocks(1, 1)).await.expect_err("no write succeeds");
            assert_eq!(told(&pool), Some(error.to_string()));
            rules.set(|_| None);
            assert_eq!(told(&pool), Some(error.to_string()));
            pool.write(id, Lba(0), &blocks(1, 1)).await.expect("write");
            assert_eq!(told(&pool), None);
            pool.close().await.expect("close");
        });
    }
}
