//! A dump of an image shows each structure, and each kind of it that a format has.

use offline::cache::dump::CacheStructure;
use offline::pool::dump::PoolStructure;
use serde_json::Value;

use crate::{Lab, THERE};

impl Lab {
    fn dump(&self, what: PoolStructure) -> Vec<Value> {
        let disks = self.disks(&THERE);
        self.run(move |rt| async move {
            let mut items = Vec::new();
            let mut put = |item| items.push(serde_json::to_value(&item).expect("JSON"));
            let dumped = offline::pool::dump::dump(&rt, disks, &what, &mut put).await;
            dumped.unwrap_or_else(|e| panic!("{what:?}: {e}"));
            whole(items)
        })
    }

    fn dump_cache(&self, what: CacheStructure) -> Vec<Value> {
        let file = self.cache.clone();
        self.run(move |rt| async move {
            let mut items = Vec::new();
            let mut put = |item| items.push(serde_json::to_value(&item).expect("JSON"));
            offline::cache::dump::dump(&rt, &file, what, &mut put).await.expect("a cache");
            whole(items)
        })
    }
}

/// Nothing of it could not be read.
fn whole(items: Vec<Value>) -> Vec<Value> {
    let bad = items.iter().find(|i| i["kind"] == "unreadable" || i.get("error").is_some());
    assert_eq!(bad, None);
    assert!(!items.is_empty());
    items
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// At least one item is so.
fn some(items: &[Value], what: &str, is: impl Fn(&Value) -> bool) {
    assert!(items.iter().any(is), "nothing is {what}: {items:#?}");
}

pub fn assert_shown(lab: &Lab) {
    superblocks(lab);
    let volumes = lab.dump(PoolStructure::Volumes);
    for mode in ["writeback", "writethrough", "writearound", "none"] {
        some(&volumes, mode, |v| v["cache_mode"] == mode);
    }
    some(&volumes, "read-only", |v| v["read_only"] == true);
    some(&volumes, "limited", |v| v["limit"]["iops"] == 500);
    some(&volumes, "staging", |v| v["staged"].is_array());
    for v in volumes.iter().filter(|v| v["mapping"].is_object()) {
        let id = v["id"].to_string();
        let nodes = lab.dump(PoolStructure::Mapping(id.clone()));
        some(&nodes, "a leaf", |n| n["kind"] == "node" && n["level"] == 0);
        let extents = lab.dump(PoolStructure::Extents(id));
        let blocks: u64 = extents.iter().map(|e| number(&e["blocks"])).sum();
        assert_eq!(blocks, number(&v["allocated_blocks"]), "{v}");
        let copies = lab.dump(PoolStructure::Node(number(&v["mapping"]["address"])));
        some(&copies, "a copy", |c| c["kind"] == "copy");
    }
    groups(lab);
    of_cache(lab);
}

fn superblocks(lab: &Lab) {
    let slots = lab.dump(PoolStructure::Superblock);
    assert_eq!(slots.len(), THERE.len() * 4);
    let newest = slots.iter().max_by_key(|s| number(&s["superblock"]["sequence"])).expect("one");
    let sb = &newest["superblock"];
    assert_eq!((&sb["pool"], number(&sb["copies"])), (&"golden".into(), 2));
    assert!(sb["cache_uuid"].is_string() && number(&sb["cache_journal"]) > 0, "{sb}");
    let devices = sb["devices"].as_array().expect("a list");
    some(devices, "failed", |d| d["state"] == "failed" && d["lacks_since"].is_u64());
    some(devices, "a spare", |d| d["spare"] == true);
    assert_eq!(sb["scrub"]["state"], "done");
    assert!(number(&sb["scrub"]["verified_bytes"]) > 0, "{sb}");
}

fn groups(lab: &Lab) {
    let groups = lab.dump(PoolStructure::Groups);
    for use_ in ["data", "metadata"] {
        some(&groups, use_, |g| g["use"] == use_ && g["chunks"].as_array().is_some());
    }
    for g in groups.iter().filter(|g| g["kind"] == "group") {
        let group = number(&g["group"]) as u32;
        let bitmap = lab.dump(PoolStructure::Bitmap(group));
        assert_eq!(bitmap[0]["used_blocks"], g["used_blocks"]);
        if g["checksums"].is_object() {
            let records = lab.dump(PoolStructure::Checksums(group));
            some(&records, "a record of checksums", |r| r["kind"] == "checksums");
        }
    }
}

fn of_cache(lab: &Lab) {
    let slots = lab.dump_cache(CacheStructure::Superblock);
    let newest = slots.iter().max_by_key(|s| number(&s["superblock"]["sequence"])).expect("one");
    let sb = &newest["superblock"];
    assert!(number(&sb["staged_open"]) + number(&sb["staged_cut"]) > 0, "{sb}");
    let buckets = lab.dump_cache(CacheStructure::Buckets);
    some(&buckets, "a bucket of nodes", |b| b["use"] == "nodes");
    some(&buckets, "a dirty bucket", |b| b["use"] == "data" && number(&b["dirty_open"]) > 0);
    let index = lab.dump_cache(CacheStructure::Index);
    keys(&index, "key");
    let journal = lab.dump_cache(CacheStructure::Journal);
    keys(&journal, "insert");
    for kind in ["entry", "epoch"] {
        some(&journal, kind, |r| r["kind"] == kind);
    }
    let marks = lab.dump_cache(CacheStructure::Watermark);
    assert_eq!(marks.len(), 2);
    some(&marks, "durable", |m| number(&m["durable"]) > 0 && m["incarnation"] == sb["incarnation"]);
    let summaries = lab.dump_cache(CacheStructure::Summaries);
    some(&summaries, "a summary", |s| s["keys"].as_array().is_some_and(|k| k.len() > 8));
}

/// Keys of each kind are there.
fn keys(items: &[Value], of: &str) {
    let items: Vec<Value> = items.iter().filter(|i| i["kind"] == of).cloned().collect();
    let is_dirty = |i: &Value| number(&i["epoch"]) > 0;
    some(&items, "dirty data", |i| is_dirty(i) && i["data"]["address"].is_u64());
    some(&items, "zeros", |i| i.get("data").is_none() && i.get("staged").is_none());
    some(&items, "a part", |i| i["data"]["sectors"].is_string() && i["data"]["below"].is_null());
    some(&items, "staged", |i| i["staged"].is_array());
    some(&items, "a part over a staged block", |i| i["data"]["below"].is_array());
}
