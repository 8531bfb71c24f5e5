//! The reasons for which requests wait, in words.

use crate::words::words;

words! {
    /// A class of requests of clients.
    RequestClass {
        /// Data is read.
        Read = "read",
        /// Data is written.
        Write = "write",
        /// Data that was written is made durable.
        Flush = "flush",
        /// Content is given up, or made zeros.
        Discard = "discard",
        /// Anything else: prefetches, questions about extents.
        Other = "other",
    }
}

words! {
    /// The part of the system in which a request waits.
    Layer {
        /// The machine that runs the process.
        Host = "host",
        /// The thread that runs the engine.
        Engine = "engine",
        /// The client and its connection.
        Client = "client",
        /// Locks and modes of a volume.
        Volume = "volume",
        /// The cache.
        Cache = "cache",
        /// The pool.
        Pool = "pool",
        /// A device.
        Device = "device",
    }
}

words! {
    /// A reason for which a request may wait.
    Reason {
        /// The process did not run, though it could have: it was stopped, or the kernel held it
        /// in a system call.
        NotRunning = "not_running",
        /// The process did not run, because other threads had all processors.
        NoProcessor = "no_processor",
        /// The engine's thread was busy.
        Engine = "engine_busy",
        /// The request was ready, and its task had not had its turn.
        Turn = "engine_turn",
        /// The connection has as many requests in flight as it may.
        Depth = "connection_depth",
        /// The memory for payloads is taken.
        Payload = "payload_memory",
        /// The client has not sent all of the data yet.
        Receive = "client_sends",
        /// The client has not taken the reply yet.
        Reply = "client_receives",
        /// The volume has used what its limit allows.
        Limit = "volume_limit",
        /// Other volumes have their share first.
        Share = "volume_share",
        /// An earlier write of the same blocks is under way.
        RangeLock = "range_lock",
        /// The mode of the cache is being changed.
        ModeChange = "mode_change",
        /// The cache is being attached or detached.
        CacheChange = "cache_change",
        /// All that is dirty is being written back, for a detach or a change of a mode: writers
        /// make less dirty than is carried.
        Drain = "cache_drain",
        /// Writers are slowed, as the room for dirty data runs short.
        Throttle = "write_throttle",
        /// Write-back carries as much as it may: it is at the maximum that is set.
        WritebackRate = "writeback_rate",
        /// The journal's ring is full until a checkpoint.
        Ring = "journal_ring",
        /// The nodes of the index would find no room.
        NodeRoom = "node_room",
        /// Too many nodes of the index have changed since the last checkpoint.
        ChangedNodes = "changed_nodes",
        /// Too many entries of the journal wait to be written.
        JournalEntries = "journal_entries",
        /// No bucket is free.
        Buckets = "buckets",
        /// A node of the cache's index is read.
        Index = "index_load",
        /// The journal is made durable.
        Journal = "journal_flush",
        /// Dirty data has to be published first, as the pool is nearly full.
        Publish = "publish",
        /// The pool has no room until a commit frees some.
        PoolRoom = "pool_room",
        /// A node of the pool's trees, or a page of its tables, is read.
        Tree = "tree_load",
        /// The same data is being read ahead.
        ReadAhead = "read_ahead",
        /// The pool commits.
        Commit = "pool_commit",
        /// A look is taken whether another process writes to the same devices.
        Look = "look",
        /// A copy was bad, and another one is read.
        Heal = "heal",
        /// The device has enough to do; the request waits in its queue.
        DeviceQueue = "device_queue",
        /// The device carries the request out.
        Transfer = "device_transfer",
        /// The device makes durable what it was sent.
        DeviceFlush = "device_flush",
    }
}

impl RequestClass {
    /// Many requests of the class, in words.
    pub const fn plural(self) -> &'static str {
        match self {
            RequestClass::Read => "reads",
            RequestClass::Write => "writes",
            RequestClass::Flush => "flushes",
            RequestClass::Discard => "discards",
            RequestClass::Other => "other requests",
        }
    }

    /// One request of the class, in words.
    pub const fn singular(self) -> &'static str {
        match self {
            RequestClass::Other => "other request",
            class => class.word(),
        }
    }
}

impl Reason {
    /// The layer in which the reason lies.
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

    /// The reason in words, after "waited for".
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
}
