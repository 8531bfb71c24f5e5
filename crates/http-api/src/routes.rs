//! All routes: the one table of methods and paths. Router, checks of input and the OpenAPI document
//! are made of it. What a request takes, and what that means, stands in `model::request`; the table
//! says where in an HTTP request each field is.

use std::sync::LazyLock;

use model::{Verb, request};

use crate::fields::fields_of;
use crate::table::{Act, Field, Kind, Need, Place, Route, ShownPart};

/// All routes.
pub static ROUTES: LazyLock<Vec<Route>> = LazyLock::new(|| TABLE.iter().map(Row::route).collect());

/// A row of the table.
struct Row {
    method: &'static str,
    path: &'static str,
    act: Act,
    takes: &'static [RowField],
    what: &'static str,
}

/// A field of a row. Kind and description are those of the request's field of this name, where the
/// row does not say others.
#[derive(Clone, Copy)]
struct RowField {
    name: &'static str,
    place: Place,
    need: Need,
    kind: Option<Kind>,
    what: Option<&'static str>,
}

impl RowField {
    const fn new(name: &'static str, place: Place, need: Need) -> RowField {
        RowField { name, place, need, kind: None, what: None }
    }

    /// Gives the field another description over HTTP.
    const fn said(self, what: &'static str) -> RowField {
        RowField { what: Some(what), ..self }
    }

    /// Gives the field another kind over HTTP.
    const fn of(self, kind: Kind) -> RowField {
        RowField { kind: Some(kind), ..self }
    }

    /// Gives the field this value, as JSON, for requests in which it is absent.
    const fn or(self, value: &'static str) -> RowField {
        RowField { need: Need::Else(value), ..self }
    }
}

impl Row {
    fn route(&self) -> Route {
        let request = match self.act {
            Act::Ask(verb, _) | Act::Job(verb) => fields_of(verb),
            _ => Vec::new(),
        };
        let field = |taken: &RowField| {
            let own = request.iter().find(|own| own.name == taken.name);
            let (kind, what) = own.map_or((Kind::Text, ""), |own| (own.kind, &own.what));
            Field {
                name: taken.name,
                place: taken.place,
                kind: taken.kind.unwrap_or(kind),
                need: taken.need,
                what: taken.what.unwrap_or(what).to_owned(),
            }
        };
        let fields = self.takes.iter().map(field).collect();
        Route { method: self.method, path: self.path, act: self.act, fields, what: self.what }
    }
}

const fn path(name: &'static str) -> RowField {
    RowField::new(name, Place::Path, Need::Must)
}

const fn must(name: &'static str) -> RowField {
    RowField::new(name, Place::Body, Need::Must)
}

const fn may(name: &'static str) -> RowField {
    RowField::new(name, Place::Body, Need::May)
}

const fn query(name: &'static str) -> RowField {
    RowField::new(name, Place::Query, Need::May)
}

const fn fixed(name: &'static str, value: &'static str) -> RowField {
    RowField::new(name, Place::Fixed, Need::Else(value))
}

/// A field for this crate, which is not for the engine.
const fn here(name: &'static str, kind: Kind, value: &'static str, what: &'static str) -> RowField {
    RowField::new(name, Place::Here, Need::Else(value)).of(kind).said(what)
}

const fn wait(value: &'static str) -> RowField {
    here("wait", Kind::Flag, value, "answer when the job has ended, not before")
}

/// The number of a job, in the path.
const fn number(name: &'static str, what: &'static str) -> RowField {
    path(name).of(Kind::Whole(0, u64::MAX)).said(what)
}

/// A name in the path that picks one of a list.
const fn pick(name: &'static str, what: &'static str) -> RowField {
    path(name).of(Kind::Text).said(what)
}

const fn row(
    method: &'static str,
    path: &'static str,
    act: Act,
    takes: &'static [RowField],
    what: &'static str,
) -> Row {
    Row { method, path, act, takes, what }
}

const fn ask<R: Verb>() -> Act {
    Act::Ask(R::WORD, ShownPart::Whole)
}

const fn part<R: Verb>(shown: ShownPart) -> Act {
    Act::Ask(R::WORD, shown)
}

const fn job<R: Verb>() -> Act {
    Act::Job(R::WORD)
}

const NAME: RowField = path("name");
const DEVICE: RowField = path("device")
    .said("uuid of the device, its path with %2F for each slash, or the last part of that");
const WAIT: RowField = wait("false");
const RATE: RowField = may("rate");

/// The table.
const TABLE: &[Row] = &[
    row(
        "GET",
        "/v1/status",
        ask::<request::Status>(),
        &[],
        "the server, its pool, cache and volumes",
    ),
    row("GET", "/v1/health", Act::Health, &[], "whether something is wrong, and what to do"),
    row(
        "GET",
        "/v1/problems/{page}",
        Act::Advice,
        &[pick("page", "name of the problem, as problems of the status have it in page")],
        "the meaning of a problem, and what to do: its section of docs/operations.md",
    ),
    row(
        "GET",
        "/v1/events",
        Act::Events,
        &[here("every", Kind::Whole(1, 60), "5", "seconds between two looks")],
        "the status again and again, and what has changed, as server-sent events",
    ),
    row(
        "GET",
        "/v1/changes",
        Act::Changes,
        &[here("from", Kind::Whole(0, u64::MAX), "0", "number of the first change to show")],
        "the last 200 changes: problems, volumes, devices, the cache and long work",
    ),
    row(
        "GET",
        "/v1/history",
        Act::History,
        &[here("from", Kind::Whole(0, u64::MAX), "0", "number of the first sample to show")],
        "totals of the last hour, every five seconds",
    ),
    row("GET", "/v1/openapi.json", Act::OpenApi, &[], "this description"),
    row("GET", "/metrics", Act::Metrics, &[], "metrics for Prometheus, or as OpenMetrics"),
    row(
        "GET",
        "/v1/clients",
        ask::<request::Clients>(),
        &[],
        "the clients that are connected over NBD",
    ),
    row("GET", "/v1/volumes", ask::<request::VolumeList>(), &[], "all volumes"),
    row(
        "POST",
        "/v1/volumes",
        ask::<request::VolumeCreate>(),
        &[
            must("name"),
            must("size_bytes"),
            may("sector_bytes").of(Kind::Whole(0, 65536)).or("512"),
        ],
        "make a volume",
    ),
    row(
        "GET",
        "/v1/volumes/{name}",
        part::<request::VolumeList>(ShownPart::Named),
        &[pick("name", "name of the volume")],
        "one volume",
    ),
    row(
        "PATCH",
        "/v1/volumes/{name}",
        ask::<request::VolumeResize>(),
        &[NAME, must("size_bytes"), may("shrink"), may("force")],
        "give a volume another size",
    ),
    row(
        "DELETE",
        "/v1/volumes/{name}",
        ask::<request::VolumeDelete>(),
        &[NAME, query("force")],
        "delete a volume",
    ),
    row(
        "PUT",
        "/v1/volumes/{name}/limit",
        ask::<request::VolumeLimit>(),
        &[NAME, may("iops"), may("bytes_per_second"), may("burst_ms")],
        "limit what clients may ask of a volume; what is absent stays as it is",
    ),
    row(
        "GET",
        "/v1/volumes/{name}/first-data",
        ask::<request::VolumeData>(),
        &[NAME],
        "where the first data of a volume is",
    ),
    row(
        "PUT",
        "/v1/volumes/{name}/read-only",
        ask::<request::VolumeReadOnly>(),
        &[NAME, must("read_only")],
        "let clients change a volume, or not",
    ),
    row(
        "PUT",
        "/v1/volumes/{name}/name",
        ask::<request::VolumeRename>(),
        &[NAME, must("to"), may("force").or("false")],
        "give a volume another name",
    ),
    row(
        "PUT",
        "/v1/volumes/{name}/mode",
        job::<request::SetCacheMode>(),
        &[wait("true"), path("volume"), must("mode")],
        "change what the cache does for a volume",
    ),
    row(
        "GET",
        "/v1/snapshots",
        ask::<request::SnapshotList>(),
        &[query("volume")],
        "all snapshots, or those of a volume",
    ),
    row(
        "POST",
        "/v1/snapshots",
        ask::<request::SnapshotCreate>(),
        &[must("snapshots")],
        "take snapshots, all at one moment, or none",
    ),
    row(
        "GET",
        "/v1/snapshots/{name}",
        part::<request::SnapshotList>(ShownPart::Named),
        &[pick("name", "name of the snapshot: VOLUME@NAME")],
        "one snapshot",
    ),
    row(
        "DELETE",
        "/v1/snapshots/{name}",
        ask::<request::SnapshotDelete>(),
        &[path("snapshot"), query("force")],
        "delete a snapshot; its space comes back in the background",
    ),
    row(
        "PUT",
        "/v1/snapshots/{name}/name",
        ask::<request::SnapshotRename>(),
        &[path("snapshot"), must("to")],
        "give a snapshot another name",
    ),
    row("GET", "/v1/cache", part::<request::Status>(ShownPart::Cache), &[], "the cache"),
    row(
        "POST",
        "/v1/cache",
        ask::<request::CacheAttach>(),
        &[must("path"), may("size_bytes"), may("force").or("false")],
        "put a new cache in front of the pool",
    ),
    row(
        "DELETE",
        "/v1/cache",
        job::<request::CacheDetach>(),
        &[WAIT],
        "write everything back, and take the cache out",
    ),
    row(
        "POST",
        "/v1/cache/flush",
        job::<request::CacheFlush>(),
        &[WAIT],
        "write everything back; the cache stays",
    ),
    row(
        "POST",
        "/v1/cache/cancel",
        ask::<request::CacheCancel>(),
        &[may("volume")],
        "give up a detach, or a change of a mode, while it writes back",
    ),
    row(
        "POST",
        "/v1/gc",
        job::<request::Gc>(),
        &[WAIT],
        "a pass of garbage collection over the cache",
    ),
    row(
        "GET",
        "/v1/scrub",
        ask::<request::GetScrub>(),
        &[],
        "the scrub that runs, or the last one",
    ),
    row("POST", "/v1/scrub", ask::<request::ScrubStart>(), &[may("device"), RATE], "start a scrub"),
    row("POST", "/v1/scrub/pause", ask::<request::ScrubPause>(), &[], "let the scrub rest"),
    row("POST", "/v1/scrub/resume", ask::<request::ScrubResume>(), &[RATE], "let it go on"),
    row("POST", "/v1/scrub/cancel", ask::<request::ScrubCancel>(), &[], "end the scrub"),
    row(
        "GET",
        "/v1/devices",
        part::<request::Status>(ShownPart::Devices),
        &[],
        "the devices of the pool",
    ),
    row(
        "POST",
        "/v1/devices",
        ask::<request::DeviceAdd>(),
        &[must("device"), may("replaces"), may("force").or("false"), may("spare").or("false")],
        "add a device or a spare, or replace one",
    ),
    row(
        "POST",
        "/v1/devices/rebalance",
        ask::<request::DevicesBalance>(),
        &[],
        "move chunks until all devices are filled to the same share",
    ),
    row(
        "PUT",
        "/v1/devices/{id}/size",
        ask::<request::DeviceResize>(),
        &[DEVICE, may("size_bytes")],
        "let a device grow",
    ),
    row(
        "DELETE",
        "/v1/devices/{id}",
        ask::<request::DeviceRemove>(),
        &[DEVICE],
        "move everything from a device, which then leaves the pool",
    ),
    row(
        "POST",
        "/v1/devices/{id}/offline",
        ask::<request::DeviceOffline>(),
        &[DEVICE],
        "take a device out of use",
    ),
    row(
        "POST",
        "/v1/devices/{id}/online",
        ask::<request::DeviceOnline>(),
        &[DEVICE],
        "take a device into use again",
    ),
    row(
        "PUT",
        "/v1/pool/copies",
        ask::<request::PoolCopies>(),
        &[must("copies")],
        "change the number of copies",
    ),
    row("GET", "/v1/moves", ask::<request::GetMoves>(), &[], "what is moved between devices"),
    row(
        "POST",
        "/v1/moves/pause",
        ask::<request::MovesPause>(),
        &[fixed("paused", "true")],
        "let moves rest",
    ),
    row(
        "POST",
        "/v1/moves/resume",
        ask::<request::MovesPause>(),
        &[fixed("paused", "false")],
        "let moves go on",
    ),
    row(
        "POST",
        "/v1/moves/cancel",
        ask::<request::MovesCancel>(),
        &[],
        "devices that are about to be removed stay",
    ),
    row(
        "GET",
        "/v1/explain",
        ask::<request::Explain>(),
        &[
            query("volume"),
            query("class"),
            query("since_seconds").or("600"),
            query("slower_than_us").or("20000"),
        ],
        "why requests were slow",
    ),
    row(
        "GET",
        "/v1/config",
        ask::<request::GetConfig>(),
        &[],
        "what the server goes by, and where it is from",
    ),
    row("GET", "/v1/settings", ask::<request::Settings>(), &[], "all settings"),
    row(
        "GET",
        "/v1/settings/{key}",
        part::<request::Settings>(ShownPart::First),
        &[path("key")],
        "one setting",
    ),
    row(
        "PUT",
        "/v1/settings/{key}",
        ask::<request::Set>(),
        &[path("key"), must("value").of(Kind::Scalar), may("save").or("false")],
        "change a setting",
    ),
    row("GET", "/v1/jobs", Act::Jobs, &[], "long work that runs, and the last that ended"),
    row("GET", "/v1/jobs/{id}", Act::OneJob, &[number("id", "number of the job")], "one job"),
    row(
        "DELETE",
        "/v1/jobs/{id}",
        Act::CancelJob,
        &[number("id", "number of the job")],
        "give a job up, if it still can be",
    ),
];
