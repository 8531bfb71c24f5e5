//! A cache that is damaged at a known place: a repair writes again what has a good copy, and leaves
//! alone what has none.

use base::{BLOCK, CacheAddr};
use cache::raw::Body;
use format::cache::superblock::CacheSuperblock;
use offline::Subject;
use offline::cache::check::CacheReport;
use offline::repair::Outcome;
use sim::Fault;

use crate::journal::with_entries;
use crate::lab::Lab;

/// Kind, how many were bad, how many are good now.
fn copies(o: &Outcome<CacheReport>) -> Vec<(Subject, u64, u64)> {
    o.repairs.copies.iter().map(|m| (m.kind, m.bad, m.repaired)).collect()
}

/// Repairs what `damage` does, one time of each kind, and sees that all is as it was.
fn is_mended(lab: &Lab, want: &[(Subject, u64)], damage: impl Fn(&Lab)) {
    let before = lab.contents();
    damage(lab);
    let dry: Vec<_> = want.iter().map(|w| (w.0, w.1, 0)).collect();
    assert_eq!(copies(&lab.repair(true)), dry);
    let o = lab.repair(false);
    let done: Vec<_> = want.iter().map(|w| (w.0, w.1, w.1)).collect();
    assert_eq!(copies(&o), done, "{o:?}");
    assert!(o.now().is_clean() && o.repairs.failures.is_empty(), "{o:?}");
    assert!(lab.contents() == before, "what was written once is there again");
    assert!(lab.repair(false).repairs.is_empty());
}

#[test]
fn a_sound_cache_is_left_as_it_is() {
    let lab = Lab::new();
    let before = lab.contents();
    let o = lab.repair(false);
    assert!(o.repairs.is_empty() && o.after.is_none() && o.now().is_clean(), "{o:?}");
    assert!(lab.contents() == before);
}

#[test]
fn clean_blocks_come_from_the_pool() {
    let lab = Lab::new();
    is_mended(&lab, &[(Subject::Data, 3)], |lab| {
        let offset = |addr| lab.layout().offset_of(addr);
        lab.rot(offset(lab.first(false).1));
        let of_b = lab.extents().into_iter().find(|e| e.volume.0 == 2).expect("there");
        let Body::Data { addr, .. } = of_b.body else { panic!("it has data") };
        lab.strike(Fault::ReadError { offset: offset(CacheAddr(addr.0 + 3)), len: 512 });
        lab.rot(offset(CacheAddr(addr.0 + 5)) + BLOCK as u64 / 2);
    });
    lab.with(crate::lab::settings(), |cache, a| async move {
        cache.read(a, base::Lba(0), 64).await.expect("read");
    });
}

#[test]
fn the_other_ring_has_the_entries() {
    let lab = Lab::new();
    let entries = with_entries(&lab);
    let (sb, ring) = (lab.superblock(), lab.layout().ring());
    assert!(entries.end - entries.start >= 6);
    is_mended(&lab, &[(Subject::Journal, 2)], |lab| {
        lab.rot(ring.places(sb.replay_position)[1]);
        lab.rot(ring.places(sb.replay_position + 2)[0]);
    });
}

#[test]
fn superblocks_come_in_pairs() {
    let lab = Lab::new();
    let newest = lab.superblock().sequence;
    assert_eq!(newest % 2, 1, "the second of a pair");
    for n in [newest - 1, newest - 2] {
        is_mended(&lab, &[(Subject::Superblock, 1)], |lab| {
            lab.rot(CacheSuperblock::offset_of(n));
        });
    }
    // A crash may have torn the second: an open writes it before anything else.
    lab.rot(CacheSuperblock::offset_of(newest));
    assert!(lab.repair(false).repairs.is_empty());
}

#[test]
fn the_twin_of_a_bucket_has_the_node() {
    let lab = Lab::new();
    let (r, page) = lab.root();
    is_mended(&lab, &[(Subject::Node, 3)], |lab| {
        lab.rot(lab.node_places(r.ptr.addr)[0]);
        lab.rot(lab.node_places(page.pointer(0).addr)[1]);
        lab.rot(lab.node_places(page.pointer(1).addr)[0]);
    });
}

#[test]
fn dirty_blocks_are_named_and_left_alone() {
    let lab = Lab::new();
    lab.rot(lab.layout().offset_of(lab.first(true).1));
    let before = lab.contents();
    lab.rot(lab.layout().offset_of(lab.first(false).1));
    let o = lab.repair(false);
    assert_eq!(copies(&o), [(Subject::Data, 1, 1)], "{o:?}");
    assert_eq!((o.now().errors, o.now().damaged_copies), (1, 0));
    assert!(lab.contents() == before);
}

#[test]
fn nothing_is_written_where_the_index_is_lost() {
    let lab = Lab::new();
    lab.rot(CacheSuperblock::offset_of(lab.superblock().sequence - 2));
    lab.node_places(lab.root().0.ptr.addr).into_iter().for_each(|at| lab.rot(at));
    let before = lab.contents();
    let o = lab.repair(false);
    assert!(o.repairs.refused.is_some() && o.now().errors > 0, "{o:?}");
    assert!(lab.contents() == before);
}
