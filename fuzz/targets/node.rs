//! Nodes: what is expected of a node is taken from its own header, so that only its structure is in question.
#![no_main]

use base::{Generation, PoolAddr, crc32c};
use forebay_fuzz::{block, word};
use format::node::{NodePtr, NodeRef, decode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut bytes = block(data);
    bytes[..4].copy_from_slice(b"FBnd");
    // A reference that is not the node's own is refused, whatever the bytes are.
    let ptr = NodePtr { addr: PoolAddr(1), generation: Generation(1), crc: 1 };
    let _ = decode(data, &NodeRef { ptr, level: 0, tree: 1 });
    let ptr =
        NodePtr { addr: PoolAddr(word(&bytes, 32)), generation: Generation(word(&bytes, 24)), crc: crc32c(&bytes) };
    let expected = NodeRef { ptr, level: bytes[4], tree: word(&bytes, 16) };
    let Ok(page) = decode(&bytes, &expected) else { return };
    let inner = page.level() > 0;
    for i in 0..page.count() {
        let key = page.key(i);
        let _ = page.value(i);
        if inner {
            assert!(page.pointer(i).generation <= ptr.generation);
            assert_eq!(page.child_of(&key), i);
        } else {
            assert_eq!(page.search(&key), Ok(i));
        }
    }
    let mut again = block(&[]);
    let crc = page.seal(expected.tree, ptr.generation, ptr.addr, &mut again);
    let expected = NodeRef { ptr: NodePtr { crc, ..ptr }, ..expected };
    assert!(decode(&again, &expected).is_ok());
});
