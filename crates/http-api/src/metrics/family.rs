//! What a row of the table of metrics says.

/// A metric, of which there may be several samples.
pub struct Family {
    /// Its name, with its unit, and with `_total` where it counts.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Where its samples are in the status.
    pub each: Each,
    /// The value, below each of these places: a JSON pointer.
    pub at: &'static str,
    /// What becomes of the value.
    pub take: Take,
    /// What it tells.
    pub help: &'static str,
}

/// What a metric is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows.
    Counter,
    /// It is as it is.
    Gauge,
    /// Latencies by bounds.
    Histogram,
    /// Quantiles.
    Summary,
    /// Texts, as labels of a 1.
    Info,
}

impl Kind {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            Kind::Summary => "summary",
            Kind::Info => "info",
        }
    }
}

/// Where samples are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Each {
    /// One, in the status itself.
    Once,
    /// One of this crate's own counters.
    Http,
    /// One with these texts: names of fields, which become labels. They are below `at`. Those that
    /// name files are shown to clients with a token only.
    Texts(&'static [&'static str]),
    /// One for each of these words: 1 for the one that the value is, 0 for others.
    State(&'static [&'static str]),
    /// One for each of these fields below `at`, with a label of this name.
    Fields(&'static str, &'static [&'static str]),
    /// Requests of all volumes, by kind: label `op`.
    Op,
    /// One for each volume: label `volume`.
    Volume,
    /// One for each volume and this fact of it.
    VolumeText(&'static str),
    /// One for each volume and kind of request: labels `volume` and `op`.
    VolumeOp,
    /// One for each volume that was read through the cache: label `volume`.
    VolumeHits,
    /// One for each device of the pool: label `device`.
    Device,
    /// One for each device with these texts.
    DeviceTexts(&'static [&'static str]),
    /// One for each device and word: 1 for the one that the value is.
    DeviceState(&'static [&'static str]),
    /// One for each device and each of these fields below `at`: labels `device` and the name.
    DeviceFields(&'static str, &'static [&'static str]),
    /// One for each queue: label `device`, a uuid or `cache`.
    Queue,
    /// One for each queue and class: labels `device` and `class`.
    Class,
    /// One for each queue, class and kind of request: labels `device`, `class` and `op`.
    ClassOp,
    /// One for each thing that is wrong: label `page`, of docs/operations.md.
    Problem,
    /// One for each file of TLS that has an end: label `file`.
    TlsFile,
    /// One for each cause of slow requests: labels `layer` and `reason`.
    Cause,
}

impl Each {
    /// The names of the labels, in the order in which they are documented.
    pub fn labels(self) -> Vec<&'static str> {
        match self {
            Each::Once | Each::Http => vec![],
            Each::Texts(texts) => texts.to_vec(),
            Each::State(_) => vec!["state"],
            Each::Fields(label, _) => vec![label],
            Each::Op => vec!["op"],
            Each::Volume | Each::VolumeHits => vec!["volume"],
            Each::VolumeText(fact) => vec!["volume", fact],
            Each::VolumeOp => vec!["volume", "op"],
            Each::Device | Each::Queue => vec!["device"],
            Each::DeviceTexts(texts) => [&["device"], texts].concat(),
            Each::DeviceState(_) => vec!["device", "state"],
            Each::DeviceFields(label, _) => vec!["device", label],
            Each::Class => vec!["device", "class"],
            Each::ClassOp => vec!["device", "class", "op"],
            Each::Problem => vec!["page"],
            Each::TlsFile => vec!["file"],
            Each::Cause => vec!["layer", "reason"],
        }
    }
}

/// What becomes of a value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Take {
    /// It is multiplied by this; of a list its length is.
    Times(f64),
    /// 1 if something is there, else 0.
    Exists,
}

/// As it is.
pub(crate) const ONE: Take = Take::Times(1.0);
/// Milliseconds become seconds.
pub(crate) const MS: Take = Take::Times(1e-3);
/// Microseconds become seconds.
pub(crate) const US: Take = Take::Times(1e-6);

/// Any row.
pub(crate) const fn row(
    name: &'static str,
    kind: Kind,
    each: Each,
    at: &'static str,
    take: Take,
    help: &'static str,
) -> Family {
    Family { name, kind, each, at, take, help }
}

/// A counter.
pub(crate) const fn count(
    name: &'static str,
    each: Each,
    at: &'static str,
    help: &'static str,
) -> Family {
    row(name, Kind::Counter, each, at, ONE, help)
}

/// A gauge.
pub(crate) const fn gauge(
    name: &'static str,
    each: Each,
    at: &'static str,
    help: &'static str,
) -> Family {
    row(name, Kind::Gauge, each, at, ONE, help)
}

/// Texts.
pub(crate) const fn info(
    name: &'static str,
    each: Each,
    at: &'static str,
    help: &'static str,
) -> Family {
    row(name, Kind::Info, each, at, ONE, help)
}

/// A histogram of latencies.
pub(crate) const fn latency(name: &'static str, each: Each, help: &'static str) -> Family {
    row(name, Kind::Histogram, each, "", US, help)
}

/// Whether something is there.
pub(crate) const fn exists(
    name: &'static str,
    each: Each,
    at: &'static str,
    help: &'static str,
) -> Family {
    row(name, Kind::Gauge, each, at, Take::Exists, help)
}
