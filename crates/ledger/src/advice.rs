//! Advice on what to do about the reasons for which requests wait.

use model::wait::{Layer, Reason};

use crate::holder::Holder;

const LONG_FLUSH: &str = "the device takes long to make data durable";

/// True if a device is waited for, or what a device makes.
pub(crate) fn is_of_devices(reason: Reason) -> bool {
    let made = [Reason::ReadAhead, Reason::Commit, Reason::Journal, Reason::Look];
    reason.layer() == Layer::Device || made.contains(&reason)
}

/// Advice on a reason, if the work of `holder` kept the place of this name busy; empty if there is
/// nothing to say.
pub fn advice(reason: Reason, holder: Holder, place: &str) -> &'static str {
    match reason {
        Reason::NotRunning => {
            "look for what stops the process or the machine, and for memory that runs short"
        }
        Reason::NoProcessor => {
            "give the machine more processors, or the process more of them than its other load"
        }
        Reason::Engine | Reason::Turn => "the engine needs a faster or less loaded processor",
        Reason::Depth => "let the client use more connections",
        Reason::Payload => "raise max_payload",
        Reason::Receive | Reason::Reply => "look at the client and at the network",
        Reason::Limit => "raise the limit with forebay volume limit",
        Reason::Share => "set a limit for the volume that floods, with forebay volume limit",
        Reason::RangeLock => "the client writes the same blocks again before a reply has come",
        Reason::ModeChange | Reason::CacheChange => "it ends by itself",
        Reason::Drain => "it ends by itself; forebay cache cancel gives the change up",
        Reason::Throttle | Reason::Buckets => {
            "the pool is slower than what is written: use a larger cache, or a faster pool"
        }
        Reason::WritebackRate => "raise cache.writeback_rate_max, if the pool can take more",
        Reason::Ring | Reason::JournalEntries => {
            "the journal is small for this load: its size follows that of the cache, so use a \
             larger cache"
        }
        Reason::NodeRoom => "the cache is small for its index: use a larger one",
        Reason::ChangedNodes => "raise cache.dirty_nodes, so that more of the index may change",
        Reason::Index => "raise cache.index_memory, so that more of the index stays in memory",
        Reason::Tree => "raise pool.cached_nodes, so that more of the trees stays in memory",
        Reason::Publish | Reason::PoolRoom => "the pool is nearly full: free some of it",
        Reason::Journal | Reason::Commit | Reason::DeviceFlush => LONG_FLUSH,
        Reason::Heal => "look at the device's errors in forebay status",
        Reason::DeviceQueue | Reason::Transfer | Reason::ReadAhead | Reason::Look => {
            beside(holder, place)
        }
    }
}

/// Advice on a device that was busy with the work of `holder`.
fn beside(holder: Holder, place: &str) -> &'static str {
    match holder.name() {
        "write-back" if place.starts_with("cache ") => {
            "lower cache.writeback_rate_max, or cache.latency_target_read or \
             cache.latency_target_write, so that write-back gives way sooner"
        }
        "write-back" => {
            "lower cache.writeback_rate_max; or, where no writes wait for room and the pool's \
             image is not older than max_lag, pool.latency_target_read or \
             pool.latency_target_write, so that write-back gives way sooner"
        }
        "scrub" => {
            "let scrubs read slower (forebay set scrub.rate), or begin at another time (scrub.at)"
        }
        "move" => {
            "let moves rest while clients are at work (forebay device pause), or lower \
             pool.latency_target_read"
        }
        "collection" => "raise cache.gc_pause or lower cache.gc_slice",
        "compaction" => {
            "clients write a large part of the cache again and again: use a larger cache"
        }
        "promotion" => "keep only what is read again (forebay set cache.promote second)",
        Holder::OTHER_REQUESTS => {
            "the device itself was slow, or clients ask for more than it can do: use a faster \
             one, or limit the volumes that ask for most (forebay volume limit)"
        }
        Holder::DEVICE_FLUSH => LONG_FLUSH,
        "commit" => "the device is slow for the commits of what is written: use a faster one",
        _ => "",
    }
}
