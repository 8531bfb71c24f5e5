//! Pages: the header as it comes and sealed, the payloads of all kinds.
#![no_main]

use base::{Bitmap, Generation};
use forebay_fuzz::{block, word};
use format::page::{
    BITS_PER_PAGE, PAYLOAD, PageId, PageKind, decode_bitmap, decode_groups, decode_volumes, encode_bitmap,
    encode_groups, encode_volumes, open_page, payload_mut, seal_page,
};
use format::seal::seal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut bytes = block(data);
    let mut pool_uuid = [0; 16];
    pool_uuid.copy_from_slice(&bytes[24..40]);
    for kind in [PageKind::Volumes, PageKind::Groups, PageKind::Bitmap] {
        let id = PageId { pool_uuid, kind, page: word(&bytes, 8), slot: bytes[5] & 1 };
        let _ = open_page(&id, data);
        seal(&mut bytes);
        let _ = open_page(&id, &bytes);
        let mut sealed = bytes;
        seal_page(&id, Generation(word(&bytes, 16)), &mut sealed);
        assert!(open_page(&id, &sealed).is_ok());
    }
    let payload = payload_mut(&mut bytes).to_vec();
    let mut again = [0; PAYLOAD];
    if let Ok(records) = decode_groups(&payload) {
        encode_groups(&records, &mut again);
        assert_eq!(decode_groups(&again), Ok(records));
    }
    if let Ok(records) = decode_volumes(&payload) {
        encode_volumes(&records, &mut again);
        assert_eq!(decode_volumes(&again), Ok(records));
    }
    for bits in [64, 256, 4096, BITS_PER_PAGE as usize] {
        if let Ok(words) = decode_bitmap(&payload, bits) {
            encode_bitmap(&words, &mut again);
            assert_eq!(decode_bitmap(&again, bits).as_ref(), Ok(&words));
            Bitmap::new(bits).set_words(0, &words);
        }
    }
});
