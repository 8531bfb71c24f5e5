//! The superblock: as it comes, and with magic and seal put right.
#![no_main]

use forebay_fuzz::block;
use format::seal::seal;
use format::superblock::Superblock;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = Superblock::decode(data);
    let mut bytes = block(data);
    bytes[..8].copy_from_slice(b"FOREBAY1");
    seal(&mut bytes);
    if let Ok(sb) = Superblock::decode(&bytes) {
        let mut again = block(&[]);
        sb.encode(&mut again);
        assert_eq!(Superblock::decode(&again), Ok(sb));
    }
});
