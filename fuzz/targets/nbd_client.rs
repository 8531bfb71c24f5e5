//! What a client reads: greeting, replies to options, headers and chunks of replies.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nbd::codec::option::{parse_greeting, parse_reply};
use nbd::codec::reply::{ChunkBody, ReplyHead};

fuzz_target!(|data: &[u8]| {
    if let Some(greeting) = data.first_chunk() {
        let _ = parse_greeting(greeting);
    }
    if let Some(reply) = data.first_chunk() {
        let _ = parse_reply(reply);
    }
    if let Ok(Some((_, len))) = ReplyHead::decode(data) {
        assert!(len <= data.len());
    }
    if let Some((kind, payload)) = data.split_first_chunk() {
        let _ = ChunkBody::decode(u16::from_be_bytes(*kind), payload);
    }
});
