//! Metrics: from a status to the text that Prometheus reads.
//!
//! * [`families`]: the table of all; [`family`]: what a row says; `text`: the formats

mod counters;
pub mod families;
pub mod family;
mod text;

use model::device::QueueStatus;
use model::status::Status;
use model::volume::{Latencies, RequestsOfVolume};

pub use counters::HttpCounters;
use family::{Family, MetricSource, Samples, US};
pub use text::Format;
use text::{Labels, Text};

/// Names of files.
const PATH: &str = "path";

/// The text of all metrics: of the engine's status, and of this crate's own counters. Without
/// `paths` names of files are left out.
pub fn render(status: &Status, http: &HttpCounters, format: Format, paths: bool) -> String {
    let mut all = Exposition { status, http, text: Text::new(format), paths, begun: false };
    families::all().for_each(|family| all.family(family));
    all.text.end()
}

struct Exposition<'a> {
    status: &'a Status,
    http: &'a HttpCounters,
    text: Text,
    paths: bool,
    /// The family has samples.
    begun: bool,
}

impl Exposition<'_> {
    fn family(&mut self, family: &Family) {
        self.begun = false;
        let status = self.status;
        match &family.samples {
            Samples::Once(of) => self.place(family, &[], of, status),
            Samples::Http(of) => self.place(family, &[], of, self.http),
            Samples::Cache(of) => {
                if let Some(cache) = &status.cache {
                    self.place(family, &[], of, cache);
                }
            }
            Samples::Op(of) => {
                for (op, io) in status.requests.by_name() {
                    self.place(family, &[("op", op)], of, io);
                }
            }
            Samples::Volume(of) => {
                for volume in status.volumes.iter().map(|v| &v.volume) {
                    self.place(family, &[("volume", &volume.name)], of, volume);
                }
            }
            Samples::VolumeOp(of) => {
                for volume in &status.volumes {
                    let kinds = volume.requests.iter().flat_map(RequestsOfVolume::by_name);
                    for (op, io) in kinds {
                        let labels = [("volume", volume.volume.name.as_str()), ("op", op)];
                        self.place(family, &labels, of, io);
                    }
                }
            }
            Samples::VolumeHits(of) => {
                for volume in status.cache.iter().flat_map(|cache| &cache.hit_ratio.volumes) {
                    self.place(family, &[("volume", &volume.name)], of, volume);
                }
            }
            Samples::Device(of) => {
                for device in &status.pool.devices {
                    self.place(family, &[("device", &device.id)], of, device);
                }
            }
            Samples::Queue(of) => {
                for (device, queue) in queues(status) {
                    self.place(family, &[("device", device)], of, queue);
                }
            }
            Samples::Class(of) => {
                for (device, queue) in queues(status) {
                    for (class, io) in queue.io.by_name() {
                        self.place(family, &[("device", device), ("class", class)], of, io);
                    }
                }
            }
            Samples::ClassOp(of) => {
                for (device, queue) in queues(status) {
                    for (class, all) in queue.io.by_name() {
                        for (op, io) in all.by_name() {
                            let labels = [("device", device), ("class", class), ("op", op)];
                            self.place(family, &labels, of, io);
                        }
                    }
                }
            }
            Samples::Problem => {
                let mut pages: Vec<&str> = Vec::new();
                for problem in &status.health {
                    if !pages.contains(&&*problem.page) {
                        pages.push(&problem.page);
                        self.put(family, &[("page", &problem.page)], 1.0);
                    }
                }
            }
            Samples::TlsFile(of) => {
                for file in status.tls.iter().flat_map(|tls| &tls.files) {
                    self.place(family, &[("file", &file.file)], of, file);
                }
            }
            Samples::Cause(of) => {
                for cause in &status.slow_requests.causes {
                    let labels = [("layer", cause.layer.word()), ("reason", cause.reason.word())];
                    self.place(family, &labels, of, cause);
                }
            }
        }
    }

    /// The samples of one place.
    fn place<T>(&mut self, family: &Family, labels: &Labels<'_>, of: &MetricSource<T>, place: &T) {
        match of {
            MetricSource::Number(number) => self.put(family, labels, number(place)),
            MetricSource::Maybe(number) => {
                if let Some(n) = number(place) {
                    self.put(family, labels, n);
                }
            }
            MetricSource::By(label, numbers) => {
                for (value, number) in numbers(place) {
                    if let Some(n) = number {
                        self.put(family, &[labels, &[(label, value)]].concat(), n);
                    }
                }
            }
            MetricSource::Texts(names, texts) => {
                let mut all = labels.to_vec();
                all.extend(names.iter().copied().zip(texts(place)));
                all.retain(|(name, _)| self.paths || *name != PATH);
                self.put(family, &all, 1.0);
            }
            MetricSource::Summary(quantiles, unit) => {
                let of = quantiles(place);
                for (quantile, n) in [("0.5", of.p50), ("0.99", of.p99), ("0.999", of.p999)] {
                    let labels = [labels, &[("quantile", quantile)]].concat();
                    self.put(family, &labels, n * unit);
                }
            }
            MetricSource::Histogram(latencies) => self.histogram(family, labels, latencies(place)),
        }
    }

    fn histogram(&mut self, family: &Family, labels: &Labels<'_>, of: Latencies<'_>) {
        if of.at_most.is_empty() {
            return;
        }
        self.begin(family);
        for (bound, count) in self.status.latency_bounds_us.iter().zip(of.at_most) {
            // Microseconds divided by a power of ten give the shortest text.
            let bound = (*bound as f64 / 1e6).to_string();
            let labels = [labels, &[("le", bound.as_str())]].concat();
            self.text.sample(family.name, "_bucket", &labels, *count as f64);
        }
        let (all, count) = ([labels, &[("le", "+Inf")]].concat(), of.count as f64);
        self.text.sample(family.name, "_bucket", &all, count);
        self.text.sample(family.name, "_sum", labels, of.sum_us * US);
        self.text.sample(family.name, "_count", labels, count);
    }

    fn put(&mut self, family: &Family, labels: &Labels<'_>, value: f64) {
        self.begin(family);
        self.text.sample(family.name, "", labels, value);
    }

    fn begin(&mut self, family: &Family) {
        if !std::mem::replace(&mut self.begun, true) {
            self.text.begin(family);
        }
    }
}

/// All queues, each with the value of the label `device`.
fn queues(status: &Status) -> impl Iterator<Item = (&str, &QueueStatus)> {
    let devices = status.pool.devices.iter();
    let of_devices = devices.filter_map(|d| Some((d.id.as_str(), d.queue.as_ref()?)));
    of_devices.chain(status.cache.iter().map(|cache| ("cache", &cache.queue)))
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
