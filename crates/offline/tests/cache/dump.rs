//! What a dump of a cache shows, against what the check counts.

use offline::cache::dump::{CacheStructure, dump};

use crate::lab::Lab;

fn dumped(lab: &Lab, what: CacheStructure) -> Vec<String> {
    lab.run(move |rt, devices| async move {
        let mut lines = Vec::new();
        let mut put = |item| lines.push(serde_json::to_string(&item).expect("JSON"));
        dump(&rt, &devices.file, what, &mut put).await.expect("a cache");
        lines
    })
}

fn count(lines: &[String], what: &str) -> usize {
    lines.iter().filter(|l| l.contains(what)).count()
}

#[test]
fn all_that_the_check_counts_is_shown() {
    let lab = Lab::new();
    lab.crash();
    let found = lab.check();
    let c = found.counts;
    let lines = dumped(&lab, CacheStructure::Superblock);
    assert_eq!((lines.len(), count(&lines, "\"pool_uuid\":\"0101")), (4, 4), "{lines:?}");
    let lines = dumped(&lab, CacheStructure::Index);
    assert_eq!(count(&lines, "\"kind\":\"node\""), c.nodes as usize);
    assert!(
        count(&lines, "\"kind\":\"key\"") > 900
            && count(&lines, "\"tree\":\"index of the cache\"") > 2
    );
    let lines = dumped(&lab, CacheStructure::Journal);
    assert_eq!(count(&lines, "\"kind\":\"entry\""), c.journal_entries as usize);
    assert_eq!(count(&lines, "\"kind\":\"insert\""), c.journal_records as usize);
    let lines = dumped(&lab, CacheStructure::Buckets);
    assert!(
        count(&lines, "\"use\":\"data\"") > 50 && count(&lines, "\"use\":\"nodes\"") > 0,
        "{lines:?}"
    );
    assert_eq!(count(&lines, "\"kind\":\"free\""), 1);
}
