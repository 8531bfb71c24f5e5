//! All routes: the one table of methods and paths. Router, checks of input and the OpenAPI document
//! are made of it.

use crate::table::{Act, Field, Kind, Need, Place, Route, Shown};

const TEXT: Kind = Kind::Text;
const CLASS: Kind = Kind::Word(&["read", "write", "flush", "discard", "other"]);
const WHOLE: Kind = Kind::Whole(0, u64::MAX);

const fn field(
    name: &'static str,
    place: Place,
    kind: Kind,
    need: Need,
    what: &'static str,
) -> Field {
    Field { name, place, kind, need, what }
}

const fn path(name: &'static str, what: &'static str) -> Field {
    field(name, Place::Path, TEXT, Need::Must, what)
}

const fn must(name: &'static str, kind: Kind, what: &'static str) -> Field {
    field(name, Place::Body, kind, Need::Must, what)
}

const fn may(name: &'static str, kind: Kind, what: &'static str) -> Field {
    field(name, Place::Body, kind, Need::May, what)
}

const fn body(name: &'static str, kind: Kind, default: &'static str, what: &'static str) -> Field {
    field(name, Place::Body, kind, Need::Else(default), what)
}

const fn fixed(name: &'static str, kind: Kind, value: &'static str) -> Field {
    field(name, Place::Fixed, kind, Need::Else(value), "")
}

const fn route(
    method: &'static str,
    path: &'static str,
    act: Act,
    fields: &'static [Field],
    what: &'static str,
) -> Route {
    Route { method, path, act, fields, what }
}

const fn ask(verb: &'static str) -> Act {
    Act::Ask(verb, Shown::Whole)
}

const NAME: Field = path("name", "name of the volume");
const DEVICE: Field = path(
    "device",
    "uuid of the device, its path with %2F for each slash, or the last part of that",
);
const WAIT: Field = field(
    "wait",
    Place::Here,
    Kind::Flag,
    Need::Else("false"),
    "answer when the job has ended, not before",
);
const RATE: Field = may("rate", WHOLE, "bytes a second that are read of each copy at most");

/// All routes.
pub const ROUTES: &[Route] = &[
    route("GET", "/v1/status", ask("status"), &[], "the server, its pool, cache and volumes"),
    route("GET", "/v1/health", Act::Health, &[], "whether something is wrong, and what to do"),
    route(
        "GET",
        "/v1/events",
        Act::Events,
        &[field(
            "every",
            Place::Here,
            Kind::Whole(1, 60),
            Need::Else("5"),
            "seconds between two looks",
        )],
        "the status again and again, and what has changed, as server-sent events",
    ),
    route(
        "GET",
        "/v1/history",
        Act::History,
        &[field("from", Place::Here, WHOLE, Need::Else("0"), "number of the first sample to show")],
        "totals of the last hour, every five seconds",
    ),
    route("GET", "/v1/openapi.json", Act::OpenApi, &[], "this description"),
    route("GET", "/metrics", Act::Metrics, &[], "metrics for Prometheus, or as OpenMetrics"),
    route("GET", "/v1/clients", ask("clients"), &[], "the clients that are connected over NBD"),
    route("GET", "/v1/volumes", ask("volume-list"), &[], "all volumes"),
    route(
        "POST",
        "/v1/volumes",
        ask("volume-create"),
        &[
            must(
                "name",
                Kind::Name,
                "its name: 1 to 64 bytes, no control characters, no slash, not . or ..",
            ),
            must("size_bytes", WHOLE, "its size"),
            body("sector_bytes", Kind::Whole(0, 65536), "512", "its logical sector, 512 or 4096"),
        ],
        "make a volume",
    ),
    route(
        "GET",
        "/v1/volumes/{name}",
        Act::Ask("volume-list", Shown::Named),
        &[field("name", Place::Path, TEXT, Need::Must, "name of the volume")],
        "one volume",
    ),
    route(
        "PATCH",
        "/v1/volumes/{name}",
        ask("volume-resize"),
        &[
            NAME,
            must("size_bytes", WHOLE, "its new size"),
            may("shrink", Kind::Flag, "it may become smaller: what is behind the new size is lost"),
            may("force", Kind::Flag, "also smaller while clients have it open"),
        ],
        "give a volume another size",
    ),
    route(
        "DELETE",
        "/v1/volumes/{name}",
        ask("volume-delete"),
        &[
            NAME,
            field("force", Place::Query, Kind::Flag, Need::May, "also while clients have it open"),
        ],
        "delete a volume",
    ),
    route(
        "PUT",
        "/v1/volumes/{name}/limit",
        ask("volume-limit"),
        &[
            NAME,
            may("iops", Kind::Whole(0, u32::MAX as u64), "requests a second; 0: no limit"),
            may("bytes_per_second", WHOLE, "bytes a second; 0: no limit"),
            may(
                "burst_ms",
                Kind::Whole(0, u32::MAX as u64),
                "milliseconds of each rate that an idle volume saves up",
            ),
        ],
        "limit what clients may ask of a volume; what is absent stays as it is",
    ),
    route(
        "GET",
        "/v1/volumes/{name}/first-data",
        ask("volume-data"),
        &[NAME],
        "where the first data of a volume is",
    ),
    route(
        "PUT",
        "/v1/volumes/{name}/read-only",
        ask("volume-read-only"),
        &[NAME, must("read_only", Kind::Flag, "clients may change nothing")],
        "let clients change a volume, or not",
    ),
    route(
        "PUT",
        "/v1/volumes/{name}/mode",
        Act::Job("cache-mode"),
        &[
            field(
                "wait",
                Place::Here,
                Kind::Flag,
                Need::Else("true"),
                "answer when the job has ended, not before",
            ),
            path("volume", "name of the volume"),
            must(
                "mode",
                Kind::Word(&["writeback", "writethrough", "writearound", "none"]),
                "what the cache is to do",
            ),
        ],
        "change what the cache does for a volume",
    ),
    route(
        "GET",
        "/v1/cache",
        Act::Ask("status", Shown::Part("/cache", "the pool has no cache")),
        &[],
        "the cache",
    ),
    route(
        "POST",
        "/v1/cache",
        ask("cache-attach"),
        &[
            must("path", TEXT, "its file or block device, as the server sees it"),
            may("size_bytes", WHOLE, "its size, if it is a file that is not there yet"),
            body("force", Kind::Flag, "false", "what it holds may be overwritten"),
        ],
        "put a new cache in front of the pool",
    ),
    route(
        "DELETE",
        "/v1/cache",
        Act::Job("cache-detach"),
        &[WAIT],
        "write everything back, and take the cache out",
    ),
    route(
        "POST",
        "/v1/cache/flush",
        Act::Job("cache-flush"),
        &[WAIT],
        "write everything back; the cache stays",
    ),
    route(
        "POST",
        "/v1/cache/cancel",
        ask("cache-cancel"),
        &[may("volume", TEXT, "the volume whose change of the mode it is; absent: the detach")],
        "give up a detach, or a change of a mode, while it writes back",
    ),
    route("POST", "/v1/gc", Act::Job("gc"), &[WAIT], "a pass of garbage collection over the cache"),
    route("GET", "/v1/scrub", ask("scrub-status"), &[], "the scrub that runs, or the last one"),
    route(
        "POST",
        "/v1/scrub",
        ask("scrub-start"),
        &[may("device", TEXT, "path of the only device to read"), RATE],
        "start a scrub",
    ),
    route("POST", "/v1/scrub/pause", ask("scrub-pause"), &[], "let the scrub rest"),
    route("POST", "/v1/scrub/resume", ask("scrub-resume"), &[RATE], "let it go on"),
    route("POST", "/v1/scrub/cancel", ask("scrub-cancel"), &[], "end the scrub"),
    route(
        "GET",
        "/v1/devices",
        Act::Ask("status", Shown::Part("/pool/devices", "there is no device")),
        &[],
        "the devices of the pool",
    ),
    route(
        "POST",
        "/v1/devices",
        ask("device-add"),
        &[
            must("device", TEXT, "it, as on a command line"),
            may("replaces", TEXT, "path or uuid of the one whose data moves to it"),
            body("force", Kind::Flag, "false", "what it holds may be overwritten"),
            body("spare", Kind::Flag, "false", "it takes the place of one that stays out of use"),
        ],
        "add a device or a spare, or replace one",
    ),
    route(
        "POST",
        "/v1/devices/rebalance",
        ask("devices-balance"),
        &[],
        "move chunks until all devices are filled to the same share",
    ),
    route(
        "PUT",
        "/v1/devices/{id}/size",
        ask("device-resize"),
        &[
            DEVICE,
            field("size_bytes", Place::Body, WHOLE, Need::May, "absent: the size that it has now"),
        ],
        "let a device grow",
    ),
    route(
        "DELETE",
        "/v1/devices/{id}",
        ask("device-remove"),
        &[DEVICE],
        "move everything from a device, which then leaves the pool",
    ),
    route(
        "POST",
        "/v1/devices/{id}/offline",
        ask("device-offline"),
        &[DEVICE],
        "take a device out of use",
    ),
    route(
        "POST",
        "/v1/devices/{id}/online",
        ask("device-online"),
        &[DEVICE],
        "take a device into use again",
    ),
    route(
        "PUT",
        "/v1/pool/copies",
        ask("pool-copies"),
        &[must(
            "copies",
            Kind::Whole(1, 3),
            "copies of every block, not more than there are devices",
        )],
        "change the number of copies",
    ),
    route("GET", "/v1/moves", ask("moves-status"), &[], "what is moved between devices"),
    route(
        "POST",
        "/v1/moves/pause",
        ask("moves-pause"),
        &[fixed("paused", Kind::Flag, "true")],
        "let moves rest",
    ),
    route(
        "POST",
        "/v1/moves/resume",
        ask("moves-pause"),
        &[fixed("paused", Kind::Flag, "false")],
        "let moves go on",
    ),
    route(
        "POST",
        "/v1/moves/cancel",
        ask("moves-cancel"),
        &[],
        "devices that are about to be removed stay",
    ),
    route(
        "GET",
        "/v1/explain",
        ask("explain"),
        &[
            field("volume", Place::Query, TEXT, Need::May, "requests of this volume only"),
            field("class", Place::Query, CLASS, Need::May, "requests of this class only"),
            field(
                "since_seconds",
                Place::Query,
                WHOLE,
                Need::Else("600"),
                "how far to look back, in whole minutes",
            ),
            field("slower_than_us", Place::Query, WHOLE, Need::Else("20000"), "what is slow"),
        ],
        "why requests were slow",
    ),
    route("GET", "/v1/config", ask("config"), &[], "what the server goes by, and where it is from"),
    route("GET", "/v1/settings", ask("settings"), &[], "all settings"),
    route(
        "GET",
        "/v1/settings/{key}",
        Act::Ask("settings", Shown::First),
        &[path("key", "name of the setting")],
        "one setting",
    ),
    route(
        "PUT",
        "/v1/settings/{key}",
        ask("set"),
        &[
            path("key", "name of the setting"),
            must("value", Kind::Scalar, "its value, as the configuration file has it"),
            body("save", Kind::Flag, "false", "write it to the configuration file, too"),
        ],
        "change a setting",
    ),
    route("GET", "/v1/jobs", Act::Jobs, &[], "long work that runs, and the last that ended"),
    route(
        "GET",
        "/v1/jobs/{id}",
        Act::OneJob,
        &[field("id", Place::Path, WHOLE, Need::Must, "number of the job")],
        "one job",
    ),
    route(
        "DELETE",
        "/v1/jobs/{id}",
        Act::CancelJob,
        &[field("id", Place::Path, WHOLE, Need::Must, "number of the job")],
        "give a job up, if it still can be",
    ),
];
