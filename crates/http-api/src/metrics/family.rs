//! A row of the table of metrics.

use model::cache::{CacheStatus, VolumeHitRatio};
use model::device::{DeviceStatus, QueueStatus};
use model::io::{IoOfClass, IoOfKind, Quantiles};
use model::status::{SlowCause, Status, TlsFile};
use model::volume::{Latencies, Volume, VolumeIo};

use super::counters::HttpCounters;

/// A metric, of which there may be several samples.
pub struct Family {
    /// The name, with its unit, and with `_total` where it counts.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: Kind,
    /// The places of its samples, and their values.
    pub samples: Samples,
    /// The meaning, in words.
    pub help: &'static str,
}

/// A kind of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A number that goes up and down.
    Gauge,
    /// Latencies by bounds.
    Histogram,
    /// Quantiles of a length of time, with its sum and its count.
    Summary,
    /// Texts, as labels of a 1.
    Info,
}

impl Kind {
    /// The word for it.
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

/// The places of a status that have samples, and what is taken from each.
pub enum Samples {
    /// One place, the status itself.
    Once(MetricSource<Status>),
    /// One of this crate's own counters.
    Http(MetricSource<HttpCounters>),
    /// The cache, where there is one.
    Cache(MetricSource<CacheStatus>),
    /// Requests of all volumes, by kind: label `op`.
    Op(MetricSource<IoOfKind>),
    /// Each volume: label `volume`.
    Volume(MetricSource<Volume>),
    /// Each volume and kind of request: labels `volume` and `op`.
    VolumeOp(MetricSource<VolumeIo>),
    /// Each volume that was read through the cache: label `volume`.
    VolumeHits(MetricSource<VolumeHitRatio>),
    /// Each device of the pool: label `device`.
    Device(MetricSource<DeviceStatus>),
    /// Each queue: label `device`, a uuid or `cache`.
    Queue(MetricSource<QueueStatus>),
    /// Each queue and class: labels `device` and `class`.
    Class(MetricSource<IoOfClass>),
    /// Each queue, class and kind of request: labels `device`, `class` and `op`.
    ClassOp(MetricSource<IoOfKind>),
    /// A 1 for each thing that is wrong: label `page`, of docs/operations.md.
    Problem,
    /// Each file of TLS that has an end: label `file`.
    TlsFile(MetricSource<TlsFile>),
    /// Each cause of slow requests: labels `layer` and `reason`.
    Cause(MetricSource<SlowCause>),
}

/// The value of a label, and a number, where there is one.
pub type LabelledNumber = (&'static str, Option<f64>);

/// A number, or several, of a place.
pub enum MetricSource<T: 'static> {
    /// One number, which is always there.
    Number(fn(&T) -> f64),
    /// A number, where there is one.
    Maybe(fn(&T) -> Option<f64>),
    /// Several numbers, each with its value of this label.
    By(&'static str, fn(&T) -> Vec<LabelledNumber>),
    /// A 1 with texts, as these labels in this order; the last ones may be absent. The label that
    /// names files is shown to clients with a token only.
    Texts(&'static [&'static str], fn(&T) -> Vec<&str>),
    /// Quantiles, and what makes seconds of them.
    Summary(fn(&T) -> &Quantiles, f64),
    /// Latencies by bounds, where there were requests.
    Histogram(fn(&T) -> Latencies<'_>),
}

impl Samples {
    /// The names of the labels, in the order in which they are documented.
    pub fn labels(&self) -> Vec<&'static str> {
        match self {
            Samples::Once(of) => of.labels(&[]),
            Samples::Http(of) => of.labels(&[]),
            Samples::Cache(of) => of.labels(&[]),
            Samples::Op(of) => of.labels(&["op"]),
            Samples::Volume(of) => of.labels(&["volume"]),
            Samples::VolumeOp(of) => of.labels(&["volume", "op"]),
            Samples::VolumeHits(of) => of.labels(&["volume"]),
            Samples::Device(of) => of.labels(&["device"]),
            Samples::Queue(of) => of.labels(&["device"]),
            Samples::Class(of) => of.labels(&["device", "class"]),
            Samples::ClassOp(of) => of.labels(&["device", "class", "op"]),
            Samples::Problem => vec!["page"],
            Samples::TlsFile(of) => of.labels(&["file"]),
            Samples::Cause(of) => of.labels(&["layer", "reason"]),
        }
    }
}

impl<T> MetricSource<T> {
    fn labels(&self, place: &[&'static str]) -> Vec<&'static str> {
        let own = match self {
            MetricSource::By(label, _) => std::slice::from_ref(label),
            MetricSource::Texts(labels, _) => labels,
            MetricSource::Number(_)
            | MetricSource::Maybe(_)
            | MetricSource::Summary(..)
            | MetricSource::Histogram(_) => &[],
        };
        [place, own].concat()
    }
}

/// Milliseconds become seconds.
pub(crate) const MS: f64 = 1e-3;
/// Microseconds become seconds.
pub(crate) const US: f64 = 1e-6;

/// A number for each of these states: 1 for the one that is, 0 for others.
pub(crate) fn one_of<T: Copy + PartialEq, const N: usize>(
    all: [T; N],
    word: fn(T) -> &'static str,
    now: T,
) -> Vec<LabelledNumber> {
    all.iter().map(|state| (word(*state), Some(f64::from(*state == now)))).collect()
}

/// A counter.
pub(crate) const fn count(name: &'static str, samples: Samples, help: &'static str) -> Family {
    Family { name, kind: Kind::Counter, samples, help }
}

/// A gauge.
pub(crate) const fn gauge(name: &'static str, samples: Samples, help: &'static str) -> Family {
    Family { name, kind: Kind::Gauge, samples, help }
}

/// Texts.
pub(crate) const fn info(name: &'static str, samples: Samples, help: &'static str) -> Family {
    Family { name, kind: Kind::Info, samples, help }
}

/// Quantiles.
pub(crate) const fn summary(name: &'static str, samples: Samples, help: &'static str) -> Family {
    Family { name, kind: Kind::Summary, samples, help }
}

/// A histogram of latencies.
pub(crate) const fn latency(name: &'static str, samples: Samples, help: &'static str) -> Family {
    Family { name, kind: Kind::Histogram, samples, help }
}
