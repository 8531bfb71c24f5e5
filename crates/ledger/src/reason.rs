//! Why a request may wait, and in what words this is said.

use crate::holder::Holder;

/// What a client asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Data is read.
    Read,
    /// Data is written.
    Write,
    /// What was written is made durable.
    Flush,
    /// Content is given up, or made zeros.
    Discard,
    /// Anything else: prefetches, questions about extents.
    Other,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 5] = [Kind::Read, Kind::Write, Kind::Flush, Kind::Discard, Kind::Other];

    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Read => "read",
            Kind::Write => "write",
            Kind::Flush => "flush",
            Kind::Discard => "discard",
            Kind::Other => "other",
        }
    }

    /// Many of them.
    pub fn words(self) -> &'static str {
        match self {
            Kind::Read => "reads",
            Kind::Write => "writes",
            Kind::Flush => "flushes",
            Kind::Discard => "discards",
            Kind::Other => "other requests",
        }
    }

    /// One of them.
    pub fn one(self) -> &'static str {
        match self {
            Kind::Other => "other request",
            kind => kind.word(),
        }
    }

    /// The kind with this name.
    pub fn of_word(word: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| k.word() == word)
    }
}

/// The part of the system in which a request waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Layer {
    /// The machine that runs the process.
    Host,
    /// The thread that runs the engine.
    Engine,
    /// The client and its connection.
    Client,
    /// Locks and modes of a volume.
    Volume,
    /// The cache.
    Cache,
    /// The pool.
    Pool,
    /// A device.
    Device,
}

impl Layer {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Layer::Host => "host",
            Layer::Engine => "engine",
            Layer::Client => "client",
            Layer::Volume => "volume",
            Layer::Cache => "cache",
            Layer::Pool => "pool",
            Layer::Device => "device",
        }
    }
}

/// Why a request waits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// The process did not run, though it could have: it was stopped, or the kernel held it in a
    /// system call.
    NotRunning,
    /// The process did not run, because other threads had all processors.
    NoProcessor,
    /// The engine's thread was busy.
    Engine,
    /// The request was ready, and its task had not had its turn.
    Turn,
    /// The connection has as many requests in flight as it may.
    Depth,
    /// The memory for payloads is taken.
    Payload,
    /// The client has not sent all of the data yet.
    Receive,
    /// The client has not taken the reply yet.
    Reply,
    /// The volume has used what its limit allows.
    Limit,
    /// Other volumes have their share first.
    Share,
    /// An earlier write of the same blocks is under way.
    RangeLock,
    /// The mode of the cache is being changed.
    ModeChange,
    /// The cache is being attached or detached.
    CacheChange,
    /// All that is dirty is being written back, for a detach or a change of a mode: writers make
    /// less dirty than is carried.
    Drain,
    /// Writers are slowed, as the room for dirty data runs short.
    Throttle,
    /// Write-back carries as much as it may: it is at the maximum that is set.
    WritebackRate,
    /// The journal's ring is full until a checkpoint.
    Ring,
    /// The nodes of the index would find no room.
    NodeRoom,
    /// Too many nodes of the index have changed since the last checkpoint.
    ChangedNodes,
    /// Too many entries of the journal wait to be written.
    JournalEntries,
    /// No bucket is free.
    Buckets,
    /// A node of the cache's index is read.
    Index,
    /// The journal is made durable.
    Journal,
    /// Dirty data has to be published first, as the pool is nearly full.
    Publish,
    /// The pool has no room until a commit frees some.
    PoolRoom,
    /// A node of the pool's trees, or a page of its tables, is read.
    Tree,
    /// The same data is being read ahead.
    ReadAhead,
    /// The pool commits.
    Commit,
    /// A look is taken whether another process writes to the same devices.
    Look,
    /// A copy was bad, and another one is read.
    Heal,
    /// The device has enough to do; the request waits in its queue.
    DeviceQueue,
    /// The device carries the request out.
    Transfer,
    /// The device makes durable what it was sent.
    DeviceFlush,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Reason; 33] = [
        Reason::NotRunning,
        Reason::NoProcessor,
        Reason::Engine,
        Reason::Turn,
        Reason::Depth,
        Reason::Payload,
        Reason::Receive,
        Reason::Reply,
        Reason::Limit,
        Reason::Share,
        Reason::RangeLock,
        Reason::ModeChange,
        Reason::CacheChange,
        Reason::Drain,
        Reason::Throttle,
        Reason::WritebackRate,
        Reason::Ring,
        Reason::NodeRoom,
        Reason::ChangedNodes,
        Reason::JournalEntries,
        Reason::Buckets,
        Reason::Index,
        Reason::Journal,
        Reason::Publish,
        Reason::PoolRoom,
        Reason::Tree,
        Reason::ReadAhead,
        Reason::Commit,
        Reason::Look,
        Reason::Heal,
        Reason::DeviceQueue,
        Reason::Transfer,
        Reason::DeviceFlush,
    ];

    /// Its name in JSON and tables.
    pub fn word(self) -> &'static str {
        match self {
            Reason::NotRunning => "not_running",
            Reason::NoProcessor => "no_processor",
            Reason::Engine => "engine_busy",
            Reason::Turn => "engine_turn",
            Reason::Depth => "connection_depth",
            Reason::Payload => "payload_memory",
            Reason::Receive => "client_sends",
            Reason::Reply => "client_receives",
            Reason::Limit => "volume_limit",
            Reason::Share => "volume_share",
            Reason::RangeLock => "range_lock",
            Reason::ModeChange => "mode_change",
            Reason::CacheChange => "cache_change",
            Reason::Drain => "cache_drain",
            Reason::Throttle => "write_throttle",
            Reason::WritebackRate => "writeback_rate",
            Reason::Ring => "journal_ring",
            Reason::NodeRoom => "node_room",
            Reason::ChangedNodes => "changed_nodes",
            Reason::JournalEntries => "journal_entries",
            Reason::Buckets => "buckets",
            Reason::Index => "index_load",
            Reason::Journal => "journal_flush",
            Reason::Publish => "publish",
            Reason::PoolRoom => "pool_room",
            Reason::Tree => "tree_load",
            Reason::ReadAhead => "read_ahead",
            Reason::Commit => "pool_commit",
            Reason::Look => "look",
            Reason::Heal => "heal",
            Reason::DeviceQueue => "device_queue",
            Reason::Transfer => "device_transfer",
            Reason::DeviceFlush => "device_flush",
        }
    }

    /// Where this is.
    pub fn layer(self) -> Layer {
        match self {
            Reason::NotRunning | Reason::NoProcessor => Layer::Host,
            Reason::Engine | Reason::Turn => Layer::Engine,
            Reason::Depth | Reason::Payload | Reason::Receive | Reason::Reply => Layer::Client,
            Reason::Limit
            | Reason::Share
            | Reason::RangeLock
            | Reason::ModeChange
            | Reason::CacheChange => Layer::Volume,
            Reason::Drain
            | Reason::Throttle
            | Reason::WritebackRate
            | Reason::Ring
            | Reason::NodeRoom
            | Reason::ChangedNodes
            | Reason::JournalEntries
            | Reason::Buckets
            | Reason::Index
            | Reason::Journal => Layer::Cache,
            Reason::Publish
            | Reason::PoolRoom
            | Reason::Tree
            | Reason::ReadAhead
            | Reason::Commit
            | Reason::Look
            | Reason::Heal => Layer::Pool,
            Reason::DeviceQueue | Reason::Transfer | Reason::DeviceFlush => Layer::Device,
        }
    }

    /// A device is waited for, or what it makes.
    pub(crate) fn is_of_devices(self) -> bool {
        let made = [Reason::ReadAhead, Reason::Commit, Reason::Journal, Reason::Look];
        self.layer() == Layer::Device || made.contains(&self)
    }

    /// What a request that waits for this waits for, after "waited for".
    pub fn text(self) -> &'static str {
        match self {
            Reason::NotRunning => "the process, which was stopped or held by the kernel",
            Reason::NoProcessor => "a processor, as others had them all",
            Reason::Engine => "the engine's thread, which was busy",
            Reason::Turn => "a turn on the engine's thread",
            Reason::Depth => "earlier requests of the same connection",
            Reason::Payload => "memory for payloads",
            Reason::Receive => "the client, to send the data",
            Reason::Reply => "the client, to take the reply",
            Reason::Limit => "the limit of the volume",
            Reason::Share => "a share beside other volumes",
            Reason::RangeLock => "an earlier write of the same blocks",
            Reason::ModeChange => "a change of the cache's mode",
            Reason::CacheChange => "an attach or a detach of the cache",
            Reason::Drain => "write-back, as a detach or a change of a mode needs all of it",
            Reason::Throttle => "write-back, as room for dirty data runs short",
            Reason::WritebackRate => "the highest rate that write-back may have",
            Reason::Ring => "a checkpoint, as the journal's ring is full",
            Reason::NodeRoom => "room for nodes of the cache's index",
            Reason::ChangedNodes => "a checkpoint, as many nodes of the cache's index have changed",
            Reason::JournalEntries => "entries of the journal that wait to be written",
            Reason::Buckets => "a free bucket of the cache",
            Reason::Index => "a node of the cache's index",
            Reason::Journal => "the cache's journal",
            Reason::Publish => "dirty data to be published, as the pool is nearly full",
            Reason::PoolRoom => "room in the pool",
            Reason::Tree => "a node of the pool's trees",
            Reason::ReadAhead => "data that is read ahead",
            Reason::Commit => "a commit of the pool",
            Reason::Look => "a look whether another process writes to the same devices",
            Reason::Heal => "a good copy of a bad block",
            Reason::DeviceQueue => "a turn on",
            Reason::Transfer => "a transfer of",
            Reason::DeviceFlush => "a flush of",
        }
    }

    /// What to do about it, if this work kept it busy at a place of this name; empty if there is
    /// nothing to say.
    pub fn advice(self, holder: Holder, place: &str) -> &'static str {
        match self {
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
            Reason::Journal | Reason::Commit | Reason::DeviceFlush => {
                "the device takes long to make data durable"
            }
            Reason::Heal => "look at the device's errors in forebay status",
            Reason::DeviceQueue | Reason::Transfer | Reason::ReadAhead | Reason::Look => {
                beside(holder, place)
            }
        }
    }
}

/// What to do about a device that was busy with this.
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
        "commit" => "the device is slow for the commits of what is written: use a faster one",
        _ => "",
    }
}
