//! Names and places of volumes: renaming, and a table that is full.

use base::{BLOCK_U64, ErrorKind};
use testkit::{Mirror, open};

#[test]
fn a_renamed_volume_keeps_its_content_and_its_name() {
    let bench = Mirror::filled(1, (1, 1), 64);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.create_volume("other", BLOCK_U64, 4096).await.expect("made");
        let taken = pool.rename_volume(id, "other").await.expect_err("taken");
        assert_eq!(taken.kind, ErrorKind::Exists);
        let blank = pool.rename_volume(id, " ").await.expect_err("no name");
        assert_eq!(blank.kind, ErrorKind::Invalid);
        pool.rename_volume(id, "v").await.expect("its own name");
        pool.rename_volume(id, "new").await.expect("renamed");
        pool.create_volume("v", BLOCK_U64, 4096).await.expect("the old name is free");
        std::mem::forget(pool);
    });
    bench.world.power_cut();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        assert_eq!(pool.find_volume("new").map(|v| v.id), Some(id));
        assert_ne!(pool.find_volume("v").map(|v| v.id), Some(id));
        pool.close().await.expect("closed");
    });
    assert!(bench.check().is_clean());
}

#[test]
fn a_new_volume_gets_the_place_of_one_that_is_being_deleted() {
    let bench = Mirror::filled(2, (1, 1), 2048);
    let id = bench.volume;
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        let mut made = 0;
        let full = loop {
            match pool.create_volume(&format!("v{made}"), BLOCK_U64, 4096).await {
                Ok(_) => made += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(full.kind, ErrorKind::Limit, "{full}");
        assert!(full.to_string().contains(&format!("room for {} volumes", made + 1)), "{full}");
        for round in 0..3 {
            let gone = if round == 0 { id } else { pool.find_volume("again").expect("there").id };
            pool.delete_volume(gone).await.expect("deleted");
            pool.create_volume("again", BLOCK_U64, 4096).await.expect("its place is freed");
        }
        pool.close().await.expect("closed");
    });
}
