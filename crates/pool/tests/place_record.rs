//! The record of places: every device says where all are, and none is overwritten for it.

use format::places::{Place, PlaceKind, Places, SLOT_BYTES, SLOTS};
use sim::Fault;
use testkit::{Mirror, open};

fn record_on(bench: &Mirror, disk: usize) -> Option<Places> {
    let read = |slot| {
        let at = Places::offset_of(slot);
        let bytes = bench.world.contents(bench.files[disk].file, at, SLOT_BYTES);
        Places::decode(&bytes).ok()
    };
    (0..SLOTS).filter_map(read).max_by_key(|record| record.sequence)
}

fn places(paths: &[&str]) -> Vec<Place> {
    let row = |(i, path): (usize, &&str)| Place {
        kind: PlaceKind::Device,
        uuid: [i as u8 + 1; 16],
        path: path.as_bytes().to_vec(),
    };
    paths.iter().enumerate().map(row).collect()
}

#[test]
fn every_device_has_the_newest_record_and_it_survives_power_cuts() {
    let bench = Mirror::filled(1, (2, 2), 64);
    let all: Vec<Vec<Place>> =
        [&["/a", "/b"][..], &["/a", "/c"], &["/a", "/c"], &["/d", "/c", "/e"]].map(places).into();
    let last = all.last().cloned();
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        for rows in all {
            pool.places().keep(rows).await.expect("kept");
        }
        std::mem::forget(pool);
    });
    bench.world.power_cut();
    for disk in 0..2 {
        let record = record_on(&bench, disk).expect("a record");
        assert_eq!(Some(record.rows), last);
        // Three of the four said something new.
        assert_eq!(record.sequence, 3);
    }
    bench.run(|rt, files| async move { open(&rt, files).await.close().await.expect("closed") });
    assert!(bench.check().is_clean(), "superblocks and tables are where they were");
}

#[test]
fn a_device_that_takes_no_record_costs_only_its_own() {
    let bench = Mirror::filled(2, (2, 2), 64);
    let (world, file) = (bench.world.clone(), bench.files[0].file);
    bench.run(|rt, files| async move {
        let pool = open(&rt, files).await;
        pool.places().keep(places(&["/a", "/b"])).await.expect("kept");
        assert!(world.inject(file, Fault::StuckForever));
        pool.places().keep(places(&["/a", "/c"])).await.expect("the other one keeps it");
        std::mem::forget(pool);
    });
    assert_eq!(record_on(&bench, 0).map(|record| record.rows), Some(places(&["/a", "/b"])));
    assert_eq!(record_on(&bench, 1).map(|record| record.rows), Some(places(&["/a", "/c"])));
}
