//! The requests that a server answers: one type for each verb, with the type of its answer.

use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::Answer;
use crate::cache::GcStatus;
use crate::explain::Explanation;
use crate::moves::{DeviceMoves, MovesAnswer};
use crate::scrub::ScrubStatus;
use crate::setting::{Config, Setting, SettingChange};
use crate::snapshot::{Snapshot, TakenSnapshots};
use crate::volume::{CacheMode, Client, FirstData, Volume, VolumeLimitChange};
use crate::wait::RequestClass;

/// A request whose answer has a type.
pub trait Verb: Into<Request> {
    /// The word for the verb, in the control protocol.
    const WORD: &'static str;
    /// The answer of a server that carried the request out; `()`: there is nothing to say.
    type Answer: Serialize + DeserializeOwned + Into<Answer> + TryFrom<Answer>;
}

/// Defines the types of all requests, and the enum of them.
macro_rules! requests {
    ($(
        $(#[doc = $doc:literal])+
        $word:literal $name:ident -> $answer:ty {
            $( $(#[$meta:meta])+ $field:ident: $kind:ty, )*
        }
    )+) => {
        $(
            $(#[doc = $doc])+
            #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $( $(#[$meta])+ pub $field: $kind, )*
            }

            impl Verb for $name {
                const WORD: &'static str = $word;
                type Answer = $answer;
            }

            impl From<$name> for Request {
                fn from(request: $name) -> Request {
                    Request::$name(request)
                }
            }
        )+

        /// Anything that can be asked.
        #[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
        #[serde(tag = "request")]
        pub enum Request {
            $( $(#[doc = $doc])+ #[serde(rename = $word)] $name($name), )+
        }

        impl Request {
            /// The word for the verb, in the control protocol.
            pub const fn word(&self) -> &'static str {
                match self {
                    $( Request::$name(_) => $word, )+
                }
            }
        }

        /// The words for all verbs.
        pub const WORDS: &[&str] = &[$( $word, )+];

        /// The schema of the requests of a verb; nothing if there is no such verb.
        pub fn schema(word: &str, generator: &mut SchemaGenerator) -> Option<Schema> {
            match word {
                $( $word => Some(<$name as JsonSchema>::json_schema(generator)), )+
                _ => None,
            }
        }

        /// The schema of the answer to a verb; nothing if the verb has no answer, or is not known.
        pub fn answer_schema(word: &str, generator: &mut SchemaGenerator) -> Option<Schema> {
            let schema = match word {
                $( $word => generator.subschema_for::<$answer>(), )+
                _ => return None,
            };
            (schema != generator.subschema_for::<()>()).then_some(schema)
        }
    };
}

requests! {
    /// The server, its pool, cache and volumes.
    "status" Status -> crate::Status {}

    /// The clients that are connected over NBD.
    "clients" Clients -> Vec<Client> {}

    /// The volumes alone.
    "volume-list" VolumeList -> Vec<Volume> {}

    /// The place of the first data of a volume, in the pool or in the cache.
    "volume-data" VolumeData -> FirstData {
        /// The name of the volume.
        name: String,
    }

    /// A new volume.
    "volume-create" VolumeCreate -> () {
        /// The name of the volume: 1 to 64 bytes that can be seen, not . or .., no slash.
        #[schemars(length(min = 1, max = 64))]
        name: String,
        /// The size of the volume, in bytes.
        size_bytes: u64,
        /// The logical sector, 512 or 4096 bytes.
        sector_bytes: u32,
    }

    /// Another size for a volume.
    "volume-resize" VolumeResize -> () {
        /// The name of the volume.
        name: String,
        /// The new size of the volume, in bytes.
        size_bytes: u64,
        /// The volume may become smaller: what is behind the new size is lost.
        #[serde(default)]
        shrink: bool,
        /// The volume may become smaller while clients have it open.
        #[serde(default)]
        force: bool,
    }

    /// The limit on what clients may ask of a volume; a part of the limit that is absent stays as
    /// it is.
    "volume-limit" VolumeLimit -> VolumeLimitChange {
        /// The name of the volume.
        name: String,
        /// Requests a second; 0: no limit.
        iops: Option<u32>,
        /// Bytes a second; 0: no limit.
        bytes_per_second: Option<u64>,
        /// Milliseconds of each rate that an idle volume saves up.
        burst_ms: Option<u32>,
    }

    /// Whether clients may change a volume.
    "volume-read-only" VolumeReadOnly -> () {
        /// The name of the volume.
        name: String,
        /// Clients may change nothing.
        read_only: bool,
    }

    /// All snapshots, or those of one volume; those of a volume are in the order in which they were
    /// taken.
    "snapshot-list" SnapshotList -> Vec<Snapshot> {
        /// The name of the volume; absent: of all volumes.
        volume: Option<String>,
    }

    /// Snapshots of volumes, all taken at one moment, or none. They are durable when the answer
    /// comes.
    "snapshot-create" SnapshotCreate -> TakenSnapshots {
        /// The names of the snapshots: VOLUME@NAME.
        snapshots: Vec<String>,
    }

    /// Another name for a snapshot.
    "snapshot-rename" SnapshotRename -> () {
        /// The name of the snapshot: VOLUME@NAME.
        snapshot: String,
        /// The new name, without that of the volume.
        to: String,
    }

    /// The end of a snapshot. Its space comes back in the background.
    "snapshot-delete" SnapshotDelete -> () {
        /// The name of the snapshot: VOLUME@NAME.
        snapshot: String,
        /// The snapshot may be deleted while clients have it open.
        #[serde(default)]
        force: bool,
    }

    /// Another name of a volume.
    "volume-rename" VolumeRename -> () {
        /// The name of the volume.
        name: String,
        /// The new name.
        to: String,
        /// The volume may get it while clients have it open, who know it by the old one.
        #[serde(default)]
        force: bool,
    }

    /// The end of a volume.
    "volume-delete" VolumeDelete -> () {
        /// The name of the volume.
        name: String,
        /// The volume may go while clients have it open.
        #[serde(default)]
        force: bool,
    }

    /// A new cache in front of the pool.
    "cache-attach" CacheAttach -> () {
        /// The cache's file or block device, as the server sees it.
        path: PathBuf,
        /// The size of the cache, if it is a file that is not there yet.
        size_bytes: Option<u64>,
        /// The content of the device may be overwritten.
        #[serde(default)]
        force: bool,
    }

    /// Everything written back, and the cache taken out.
    "cache-detach" CacheDetach -> () {}

    /// The mode of the cache for a volume.
    "cache-mode" SetCacheMode -> () {
        /// The name of the volume.
        volume: String,
        /// The new mode.
        mode: CacheMode,
    }

    /// Everything written back; the cache stays.
    "cache-flush" CacheFlush -> () {}

    /// A detach, or the change of a volume's mode, given up while it still writes back.
    "cache-cancel" CacheCancel -> () {
        /// The volume whose change of the mode it is; absent: the detach.
        volume: Option<String>,
    }

    /// A pass of garbage collection over the cache.
    "gc" Gc -> GcStatus {}

    /// The scrub that runs, or the last one.
    "scrub-status" GetScrub -> ScrubStatus {}

    /// A new scrub.
    "scrub-start" ScrubStart -> ScrubStatus {
        /// The path of the only device to read.
        device: Option<String>,
        /// Bytes a second that are read of each copy at most.
        rate: Option<u64>,
    }

    /// The scrub that runs rests.
    "scrub-pause" ScrubPause -> ScrubStatus {}

    /// The scrub that rests goes on.
    "scrub-resume" ScrubResume -> ScrubStatus {
        /// Bytes a second that are read of each copy at most.
        rate: Option<u64>,
    }

    /// The end of the scrub that runs or rests.
    "scrub-cancel" ScrubCancel -> ScrubStatus {}

    /// A new device of the pool.
    "device-add" DeviceAdd -> DeviceMoves {
        /// The device, as on a command line.
        device: String,
        /// Path or uuid of the device whose data moves to the new one.
        replaces: Option<String>,
        /// The content of the device may be overwritten.
        force: bool,
        /// The device waits to take the place of one that stays out of use.
        #[serde(default)]
        spare: bool,
    }

    /// A device that has grown, or is to.
    "device-resize" DeviceResize -> crate::device::DeviceSize {
        /// The path or uuid of the device.
        device: String,
        /// The size that the device's file is to have, in bytes; absent: the size that it has now.
        size_bytes: Option<u64>,
    }

    /// Chunks moved until all devices are filled to the same share.
    "devices-balance" DevicesBalance -> MovesAnswer {}

    /// Everything moved from a device, which then leaves the pool.
    "device-remove" DeviceRemove -> DeviceMoves {
        /// The path or uuid of the device.
        device: String,
    }

    /// A device out of use until it is taken into use again.
    "device-offline" DeviceOffline -> DeviceMoves {
        /// The path or uuid of the device.
        device: String,
    }

    /// A device in use again that was away.
    "device-online" DeviceOnline -> DeviceMoves {
        /// The path or uuid of the device, or the path where it is now.
        device: String,
    }

    /// Another number of copies.
    "pool-copies" PoolCopies -> MovesAnswer {
        /// Copies of every block, not more than there are devices.
        #[schemars(range(min = 1, max = 3))]
        copies: u8,
    }

    /// The moves between devices.
    "moves-status" GetMoves -> MovesAnswer {}

    /// Devices that are about to be removed stay.
    "moves-cancel" MovesCancel -> MovesAnswer {}

    /// Moves rest, or go on.
    "moves-pause" MovesPause -> MovesAnswer {
        /// Moves rest.
        paused: bool,
    }

    /// Why requests were slow.
    "explain" Explain -> Explanation {
        /// Requests of this volume only.
        volume: Option<String>,
        /// Requests of this class only.
        class: Option<RequestClass>,
        /// The time to look back, in seconds; whole minutes are looked at.
        since_seconds: u64,
        /// The length from which on a request is slow, in microseconds.
        slower_than_us: u64,
    }

    /// All that the server goes by.
    "config" GetConfig -> Config {}

    /// All settings, or one.
    "settings" Settings -> Vec<Setting> {
        /// The name of the setting; absent: all of them.
        key: Option<String>,
    }

    /// Another value for a setting.
    "set" Set -> SettingChange {
        /// The name of the setting.
        key: String,
        /// The value, as the configuration file has it.
        value: String,
        /// Write the value to the configuration file, too.
        save: bool,
    }
}
