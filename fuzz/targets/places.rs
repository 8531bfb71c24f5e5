#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::targets::disk::places(data));
