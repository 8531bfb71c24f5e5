//! Nodes that are whole, and not what their parents expect.

use super::*;

#[test]
fn a_node_in_the_wrong_place_is_refused_though_it_is_resident() {
    let mut w = ascending(10_000);
    commit(&mut w);
    let root = w.durable.unwrap();
    for (id, height) in [(ID + 1, root.height), (ID, 1), (ID, root.height + 1), (ID, 0), (ID, 255)]
    {
        let wrong = Tree::open(id, Some(RootPtr { height, ..root }));
        let fault = wrong.get(&w.store, b"key").unwrap_err();
        let refusal = w.store.admit(&fault, &w.disk[&fault.ptr.addr]).unwrap_err();
        assert!(matches!(refusal, NodeError::Tree { .. } | NodeError::Level { .. }), "{refusal}");
    }
}

#[test]
fn an_edit_does_not_trust_the_order_of_keys_across_nodes() {
    let mut w = ascending(1000);
    commit(&mut w);
    // Two children change places: every node is whole, and the tree is not in order.
    let root = w.durable.unwrap();
    let expected = NodeRef { ptr: root.ptr, level: 1, tree: ID };
    let mut page = decode(&w.disk[&root.ptr.addr], &expected).unwrap();
    let (a, b) = (page.pointer(1), page.pointer(2));
    page.set_pointer(1, &b);
    page.set_pointer(2, &a);
    let mut bytes = vec![0; BLOCK];
    let crc = page.seal(ID, root.ptr.generation, root.ptr.addr, &mut bytes);
    w.disk.insert(root.ptr.addr, bytes);
    w.tree = Tree::open(ID, Some(RootPtr { ptr: NodePtr { crc, ..root.ptr }, ..root }));
    w.store = Store::new(0);
    let mut refused = None;
    for _ in 0..10 {
        let key = 300u64.to_be_bytes();
        let Err(fault) = w.store.edit(&mut w.tree, &mut w.changes, &key, &key) else {
            panic!("it could be changed")
        };
        refused = w.store.admit(&fault, &w.disk[&fault.ptr.addr]).err();
        if refused.is_some() {
            break;
        }
    }
    assert!(matches!(refused, Some(NodeError::Malformed(_))), "{refused:?}");
}
