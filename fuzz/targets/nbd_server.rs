//! What a server reads: options and requests.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::codec::option::{InfoRequest, MetaRequest, parse_option};
use nbd::codec::request::{Request, Terms};

fuzz_target!(|data: &[u8]| {
    let _ = InfoRequest::parse(data).map(|i| i.wants(3));
    let _ = MetaRequest::parse(data);
    if let Some(head) = data.first_chunk() {
        let _ = parse_option(head);
    }
    let Some(header) = data.first_chunk() else { return };
    let Ok(request) = Request::decode(header) else { return };
    assert_eq!(Request::decode(&request.encode()), Ok(request));
    for min_block in [1, 512, 4096] {
        for flags in 0..8 {
            let (read_only, structured, block_status) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
            let terms = Terms { min_block, max_block: 32 << 20, read_only, structured, block_status };
            for size in [0, 4096, 1 << 30, u64::MAX] {
                if terms.admit(&request, size).is_ok() {
                    let end = request.offset.checked_add(u64::from(request.len));
                    assert!(end.is_some_and(|end| end <= size));
                }
            }
        }
    }
});
