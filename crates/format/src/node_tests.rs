use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn sealed(page: &NodePage) -> (Vec<u8>, NodeRef) {
    let mut bytes = vec![0; BLOCK];
    let (addr, generation) = (PoolAddr(77), Generation(5));
    let crc = page.seal(9, generation, addr, &mut bytes);
    (bytes, NodeRef { ptr: NodePtr { addr, generation, crc }, level: page.level(), tree: 9 })
}

fn leaf_of(records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Option<NodePage> {
    let mut page: Option<NodePage> = None;
    for (k, v) in records {
        match &mut page {
            None => page = Some(NodePage::leaf(k, v)),
            Some(p) => p.insert(p.count(), k, v).ok()?,
        }
    }
    page
}

fn inner_of(keys: &[Vec<u8>]) -> NodePage {
    let mut page = new_root(1, &keys[0]);
    for (i, k) in keys.iter().enumerate() {
        if i > 0 {
            page.insert_child(i + 1, k).unwrap();
        }
        page.set_pointer(
            i,
            &NodePtr { addr: PoolAddr(i as u64), generation: Generation(5), crc: 3 },
        );
    }
    page
}

fn contents_of(page: &NodePage) -> BTreeMap<Vec<u8>, Vec<u8>> {
    (0..page.count()).map(|i| (page.key(i).to_vec(), page.value(i).to_vec())).collect()
}

fn short_key() -> impl Strategy<Value = Vec<u8>> {
    // Few letters and a long common prefix, so that prefixes and equal heads matter.
    (
        0usize..6,
        proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(255), any::<u8>()], 1..8),
    )
        .prop_map(|(common, tail)| [&b"prefix"[..common], &tail].concat())
}

proptest! {
    #[test]
    fn a_leaf_agrees_with_a_map(
        ops in proptest::collection::vec((short_key(), 0usize..200, 0u8..4), 1..200),
    ) {
        let mut model = BTreeMap::new();
        let mut page: Option<NodePage> = None;
        for (n, (key, len, kind)) in ops.into_iter().enumerate() {
            let value = vec![n as u8; len];
            let Some(p) = &mut page else {
                page = Some(NodePage::leaf(&key, &value));
                model.insert(key, value);
                continue;
            };
            match (p.search(&key), kind) {
                (Ok(i), 0) => {
                    p.remove(i);
                    model.remove(&key);
                }
                (found, _) => {
                    prop_assert_eq!(found.is_ok(), model.contains_key(&key));
                    let (i, done) = match found {
                        Ok(i) => (i, p.replace(i, &value)),
                        Err(i) => (i, p.insert(i, &key, &value)),
                    };
                    if done.is_err() {
                        let s = p.split(i, &key, &value, found.is_ok(), kind == 1);
                        model.insert(key, value);
                        let mut both = contents_of(&s.left);
                        prop_assert_eq!(both.len(), s.at);
                        prop_assert!(both.keys().all(|k| k[..] < *s.separator));
                        prop_assert!(contents_of(&s.right).keys().all(|k| k[..] >= *s.separator));
                        both.extend(contents_of(&s.right));
                        prop_assert_eq!(&both, &model);
                        let whole = merge(&s.left, &s.separator, &s.right, BODY);
                        prop_assert!(whole.is_none_or(|w| contents_of(&w) == model));
                        page = Some(s.left);
                        model = contents_of(page.as_ref().unwrap());
                    } else {
                        model.insert(key, value);
                    }
                }
            }
            let p = page.as_ref().unwrap();
            if model.is_empty() {
                page = None;
                continue;
            }
            prop_assert_eq!(&contents_of(p), &model);
            let (bytes, expected) = sealed(p);
            prop_assert_eq!(&contents_of(&decode(&bytes, &expected).unwrap()), &model);
        }
    }

    #[test]
    fn children_are_found_by_their_first_keys(
        keys in proptest::collection::btree_set(short_key(), 1..60),
        probes in proptest::collection::vec(short_key(), 20),
        removed in proptest::collection::vec(any::<proptest::sample::Index>(), 0..40),
    ) {
        let keys: Vec<Vec<u8>> = keys.into_iter().collect();
        let mut page = inner_of(&keys);
        let mut model: Vec<Vec<u8>> = std::iter::once(Vec::new()).chain(keys).collect();
        for index in removed {
            if model.len() > 1 {
                let i = index.index(model.len());
                page.remove(i);
                model.remove(i);
                model[0].clear();
            }
        }
        for probe in probes.iter().chain(&model.clone()) {
            prop_assert_eq!(page.child_of(probe), model.partition_point(|k| k <= probe) - 1);
        }
        let (bytes, expected) = sealed(&page);
        let read: Vec<Vec<u8>> = {
            let page = decode(&bytes, &expected).unwrap();
            (0..page.count()).map(|i| page.key(i).to_vec()).collect()
        };
        prop_assert_eq!(read, model);
    }

    #[test]
    fn hostile_bytes_are_refused_or_harmless(
        inner in any::<bool>(),
        records in proptest::collection::btree_map(
            short_key(),
            proptest::collection::vec(any::<u8>(), 0..40),
            1..60,
        ),
        damage in proptest::collection::vec(
            (prop_oneof![0usize..400, 0usize..BLOCK], any::<u8>()),
            1..6,
        ),
        probes in proptest::collection::vec(short_key(), 8),
    ) {
        let page = if inner {
            inner_of(&records.keys().cloned().collect::<Vec<_>>())
        } else {
            leaf_of(&records).unwrap()
        };
        let (mut bytes, mut expected) = sealed(&page);
        for (at, value) in damage {
            bytes[at] = value;
        }
        prop_assert!(crc32c(&bytes) == expected.ptr.crc || decode(&bytes, &expected).is_err());
        // Make the reference match, as if a hostile program had written both.
        expected.ptr.crc = crc32c(&bytes);
        expected.level = bytes[4];
        if let Ok(mut page) = decode(&bytes, &expected) {
            for i in 0..page.count() {
                let _ = (page.key(i), page.value(i).len());
            }
            for (n, key) in probes.iter().enumerate() {
                if page.level() > 0 {
                    let i = page.child_of(key);
                    prop_assert!(i < page.count());
                    page.set_pointer(i, &NodePtr::default());
                    if page.key(i)[..] != key[..] && page.insert_child(i + 1, key).is_err() {
                        let s = page.split_with_child(i + 1, key);
                        page = s.left;
                    }
                } else {
                    match page.search(key) {
                        Ok(i) if n % 2 == 0 && page.count() > 1 => page.remove(i),
                        Ok(i) => { let _ = page.replace(i, &[1; 30]); }
                        Err(i) => {
                            if page.insert(i, key, &[2; 500]).is_err() {
                                page = page.split(i, key, &[2; 500], false, n % 2 == 0).right;
                            }
                        }
                    }
                }
                let (bytes, expected) = sealed(&page);
                prop_assert!(decode(&bytes, &expected).is_ok(), "valid stays valid");
            }
        }
    }
}

#[test]
fn each_expectation_is_checked() {
    let (bytes, right) = sealed(&NodePage::leaf(b"key", b"value"));
    assert!(decode(&bytes, &right).is_ok());
    let with = |change: fn(&mut NodeRef)| {
        let mut wrong = right;
        change(&mut wrong);
        decode(&bytes, &wrong).unwrap_err()
    };
    assert!(matches!(with(|r| r.ptr.crc += 1), NodeError::Checksum { .. }));
    assert!(matches!(with(|r| r.ptr.addr.0 += 1), NodeError::Address { .. }));
    assert!(matches!(with(|r| r.ptr.generation.0 += 1), NodeError::Generation { .. }));
    assert!(matches!(with(|r| r.tree += 1), NodeError::Tree { .. }));
    assert!(matches!(with(|r| r.level += 1), NodeError::Level { .. }));
    assert_eq!(decode(&bytes[1..], &right).unwrap_err(), NodeError::Length(BLOCK - 1));
    let zeros = [0; BLOCK];
    let expected = NodeRef { ptr: NodePtr { crc: crc32c(&zeros), ..right.ptr }, ..right };
    assert_eq!(decode(&zeros, &expected).unwrap_err(), NodeError::Magic(0));
}

#[test]
fn a_malformed_node_is_refused_though_its_checksum_is_right() {
    let mut page = NodePage::leaf(b"aaa", b"1");
    page.insert(1, b"bbb", b"2").unwrap();
    let refusal = |at: usize, value: u8| {
        let (mut bytes, mut expected) = sealed(&page);
        bytes[at] = value;
        expected.ptr.crc = crc32c(&bytes);
        decode(&bytes, &expected).unwrap_err()
    };
    let (body, last) = (size_of::<Header>(), BLOCK - 1);
    let malformed = [
        (offset_of!(Header, count), 0, "no records"),
        (offset_of!(Header, reserved), 1, "reserved bytes are not zero"),
        (offset_of!(Header, heap) + 1, 255, "the slots reach into the records"),
        (offset_of!(Header, prefix_len), 33, "the prefix is too long or not padded with zeros"),
        (offset_of!(Header, live), 0, "the bytes in use do not add up"),
        (body, 0, "a record outside of the heap"),
        (body + 2, 0, "a slot's head is not its key's"),
        (last - 6, 200, "a record that is too long"),
    ];
    for (at, value, why) in malformed {
        assert_eq!(refusal(at, value), NodeError::Malformed(why), "byte {at}");
    }
    let (bytes, _) = sealed(&page);
    assert_eq!(refusal(body, bytes[body + SLOT]), NodeError::Malformed("records overlap"));

    let mut inner = new_root(1, b"m");
    inner.set_pointer(1, &NodePtr { generation: Generation(6), ..NodePtr::default() });
    let (bytes, expected) = sealed(&inner);
    assert_eq!(
        decode(&bytes, &expected).unwrap_err(),
        NodeError::Malformed("a child is younger than its parent")
    );
}

#[test]
fn a_full_node_splits_for_any_key_and_size() {
    // The new key shares nothing with about 250 keys that share 31 bytes. The prefix is lost, and
    // neither half may grow.
    for new in [[0u8; 32], [255; 32]] {
        let mut page = NodePage::leaf(&[7; 32], b"");
        for n in 8u8..=255 {
            let mut key = [7; 32];
            key[31] = n;
            assert!(page.insert(page.count(), &key, b"0123").is_ok());
        }
        let i = page.search(&new).unwrap_err();
        assert_eq!(page.insert(i, &new, b"x"), Err(NodeFull));
        let s = page.split(i, &new, b"x", false, false);
        assert_eq!(s.left.count() + s.right.count(), page.count() + 1);
    }
    // Records of the largest size.
    let mut page = NodePage::leaf(&[1; 32], &[1; MAX_VALUE]);
    let mut n = 2;
    while page.insert(page.count(), &[n; 32], &[n; MAX_VALUE]).is_ok() {
        n += 1;
    }
    assert_eq!(page.count(), 3);
    for key in [[0u8; 32], [9; 32]] {
        let i = page.search(&key).unwrap_err();
        assert_eq!(
            page.split(i, &key, &[0; MAX_VALUE], false, false).left.count() + 2,
            4 + usize::from(i > 0)
        );
    }
}

#[test]
fn a_node_holds_201_small_records() {
    let mut page = NodePage::leaf(&0u64.to_be_bytes(), &[0; 12]);
    let mut n = 1u64;
    while page.insert(page.count(), &n.to_be_bytes(), &[0; 12]).is_ok() {
        n += 1;
    }
    assert_eq!(page.count(), 201, "12-byte values by 8-byte keys in order");
}
