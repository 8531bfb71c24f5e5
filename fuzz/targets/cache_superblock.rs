//! The superblock of a cache: as it comes, and with magic and seal put right.
#![no_main]

use forebay_fuzz::block;
use format::cache::superblock::CacheSuperblock;
use format::seal::seal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = CacheSuperblock::decode(data);
    let mut bytes = block(data);
    bytes[..8].copy_from_slice(b"FBCACHE1");
    seal(&mut bytes);
    if let Ok(sb) = CacheSuperblock::decode(&bytes) {
        let mut again = block(&[]);
        sb.encode(&mut again);
        assert_eq!(CacheSuperblock::decode(&again), Ok(sb));
    }
});
