//! Fuzz targets: everything of Forebay that reads bytes from a disk, a socket or a file.
//!
//! A target takes any bytes. It may not panic, loop or run out of memory, and what a decoder
//! accepts must encode to what it accepts again. Checksums are put right by the targets themselves,
//! so that the mutations get behind them.
//!
//! * [`TARGETS`]: all of them, with seeds; [`targets`]: what they do
//! * [`golden`]: blocks of the golden images, which are seeds
//! * [`mutate`]: changes of a seed; [`run`]: a runner that knows no coverage
//!
//! The runner is a part of `cargo test` (`tests/smoke.rs`). The crate in `fuzz/` gives the same
//! targets to libFuzzer, which goes by coverage and finds more.

pub mod golden;
pub mod mutate;
pub mod run;
pub mod targets;

use targets::{cache, disk, http, nbd, outer, secure};

/// A fuzz target.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the target, which is also that of its program in `fuzz/targets`.
    pub name: &'static str,
    /// Gives it bytes. It panics where something is wrong.
    pub feed: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Inputs of the smoke test: fewer where one takes long.
    pub smoke: u32,
}

const fn target(name: &'static str, feed: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, feed, seeds, smoke: 5000 }
}

/// The same for a target of which one input takes long.
const fn slow(name: &'static str, feed: fn(&[u8]), seeds: fn() -> Vec<Vec<u8>>) -> Target {
    Target { name, feed, seeds, smoke: 500 }
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("superblock", disk::superblock, || golden::blocks_of(b"FOREBAY1")),
    target("places", disk::places, disk::some_places),
    target("page", disk::page, || golden::blocks_of(b"FBPG")),
    target("node", disk::node, || golden::blocks_of(b"FBnd")),
    target("records", disk::records, golden::records),
    target("cache_superblock", cache::superblock, cache::superblocks),
    target("cache_records", cache::records, cache::some_records),
    target("cache_journal", cache::journal, cache::some_entries),
    target("cache_watermark", cache::watermark, cache::watermarks),
    target("nbd_server", nbd::server, nbd::requests),
    target("nbd_handshake", nbd::handshake, nbd::handshakes),
    target("nbd_client", nbd::client, nbd::replies),
    slow("tls_session", secure::session, secure::hellos),
    slow("tls_files", secure::files, secure::some_files),
    slow("http", http::requests, http::some_requests),
    target("config", outer::config, outer::configs),
    target("units", outer::units, outer::some_units),
    target("control", outer::control, outer::lines),
    slow("emptiness", outer::emptiness, outer::devices),
];
