//! Records of the pool's trees: the first byte is the key's length, then the key, then the value.
#![no_main]

use format::records::{Checksums, MappedExtent, encode_checksums, mapping_key};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&n, rest)) = data.split_first() else { return };
    let (key, value) = rest.split_at(usize::from(n).min(rest.len()));
    if let Some(e) = MappedExtent::decode(key, value) {
        assert_eq!(MappedExtent::decode(&mapping_key(e.lba), &e.value()), Some(e));
    }
    if let Some(r) = Checksums::decode(key, value) {
        let mut again = Vec::new();
        encode_checksums(&mut again, r.volume, r.lba, (0..r.len()).filter_map(|i| r.crc(i)));
        assert_eq!(again, value);
        assert_eq!(r.crc(r.len()), None);
    }
});
