//! Metrics: from a status to the text that Prometheus reads.
//!
//! * [`families`]: the table of all; [`family`]: what a row says; `text`: the formats

pub mod families;
pub mod family;
mod text;

use serde_json::{Map, Value};

use family::{Each, Family, Kind, Take};
pub use text::Format;
use text::Text;

/// Names of files.
const PATH: &str = "path";

/// The text of all metrics: of the engine's status, and of this crate's own counters. Without
/// `paths` names of files are left out.
pub fn render(status: &Value, http: &Value, format: Format, paths: bool) -> String {
    let mut all = Exposition { status, http, text: Text::new(format), paths, begun: false };
    families::all().for_each(|family| all.family(family));
    all.text.end()
}

struct Exposition<'a> {
    status: &'a Value,
    http: &'a Value,
    text: Text,
    paths: bool,
    /// The family has samples.
    begun: bool,
}

/// Labels of a place, from the outside in.
type Found<'a> = Vec<(&'a str, &'a str)>;

impl<'a> Exposition<'a> {
    fn family(&mut self, family: &Family) {
        self.begun = false;
        for (labels, place) in self.places(family.each) {
            let Some(value) = place.pointer(family.at) else { continue };
            match family.each {
                Each::State(words) | Each::DeviceState(words) => {
                    for word in words.iter().filter(|_| value.is_string()) {
                        let labels = [&labels[..], &[("state", *word)]].concat();
                        self.put(family, &labels, f64::from(u8::from(value == word)));
                    }
                }
                Each::Fields(label, names) | Each::DeviceFields(label, names) => {
                    for name in names {
                        let labels = [&labels[..], &[(label, *name)]].concat();
                        self.value(family, &labels, &value[*name]);
                    }
                }
                Each::Texts(names) | Each::DeviceTexts(names) => {
                    self.texts(family, labels, names, value)
                }
                Each::VolumeText(name) => self.texts(family, labels, &[name], value),
                Each::Problem => self.put(family, &labels, 1.0),
                _ => self.value(family, &labels, value),
            }
        }
    }

    fn texts(&mut self, family: &Family, labels: Found<'_>, names: &[&str], value: &Value) {
        if !value.is_object() {
            return;
        }
        let texts = names.iter().filter(|name| self.paths || **name != PATH).filter_map(|name| {
            let fact = value.get(*name).or_else(|| value.pointer("/queue")?.get(*name));
            Some((*name, fact?.as_str()?))
        });
        let all: Found<'_> = labels.into_iter().chain(texts).collect();
        self.put(family, &all, 1.0);
    }

    /// A sample, or those of a histogram or a summary.
    fn value(&mut self, family: &Family, labels: &[(&str, &str)], value: &Value) {
        let Take::Times(times) = family.take else {
            return self.put(family, labels, f64::from(u8::from(!value.is_null())));
        };
        match family.kind {
            Kind::Histogram => self.histogram(family, labels, value, times),
            Kind::Summary => {
                for (field, quantile) in [("p50", "0.5"), ("p99", "0.99"), ("p999", "0.999")] {
                    let labels = [labels, &[("quantile", quantile)]].concat();
                    if let Some(n) = value[field].as_f64() {
                        self.put(family, &labels, n * times);
                    }
                }
            }
            _ => {
                let number =
                    value.as_array().map_or_else(|| value.as_f64(), |a| Some(a.len() as f64));
                if let Some(n) = number {
                    self.put(family, labels, n * times);
                }
            }
        }
    }

    fn histogram(&mut self, family: &Family, labels: &[(&str, &str)], value: &Value, times: f64) {
        let (status, counts) = (self.status, value["latency_at_most"].as_array());
        let (Some(bounds), Some(counts)) = (status["latency_bounds_us"].as_array(), counts) else {
            return;
        };
        let count = value["count"].as_f64().unwrap_or(0.0);
        self.begin(family);
        for (bound, count) in bounds.iter().zip(counts) {
            // Microseconds divided by a power of ten give the shortest text.
            let bound = (bound.as_f64().unwrap_or(0.0) / 1e6).to_string();
            let labels = [labels, &[("le", bound.as_str())]].concat();
            let count = count.as_f64().unwrap_or(0.0);
            self.text.sample(family.name, "_bucket", &labels, count);
        }
        let all = [labels, &[("le", "+Inf")]].concat();
        self.text.sample(family.name, "_bucket", &all, count);
        let sum = value["latency_sum_us"].as_f64().unwrap_or(0.0) * times;
        self.text.sample(family.name, "_sum", labels, sum);
        self.text.sample(family.name, "_count", labels, count);
    }

    fn put(&mut self, family: &Family, labels: &[(&str, &str)], value: f64) {
        self.begin(family);
        self.text.sample(family.name, "", labels, value);
    }

    fn begin(&mut self, family: &Family) {
        if !std::mem::replace(&mut self.begun, true) {
            self.text.begin(family);
        }
    }

    /// The places in the status at which a family has samples.
    fn places(&self, each: Each) -> Vec<(Found<'a>, &'a Value)> {
        let status = self.status;
        match each {
            Each::Once | Each::Texts(_) | Each::State(_) | Each::Fields(..) => {
                vec![(vec![], status)]
            }
            Each::Http => vec![(vec![], self.http)],
            Each::Op => named(&[], "op", &status["requests"]),
            Each::Volume | Each::VolumeText(_) => listed(&status["volumes"], "volume", "name"),
            Each::VolumeOp => {
                let volumes = listed(&status["volumes"], "volume", "name");
                below(volumes, |labels, volume| named(labels, "op", &volume["requests"]))
            }
            Each::VolumeHits => listed(&status["cache"]["hit_ratio"]["volumes"], "volume", "name"),
            Each::Device | Each::DeviceTexts(_) | Each::DeviceState(_) | Each::DeviceFields(..) => {
                devices(status)
            }
            Each::Queue => queues(status),
            Each::Class => {
                below(queues(status), |labels, queue| named(labels, "class", &queue["io"]))
            }
            Each::ClassOp => {
                let classes = self.places(Each::Class);
                below(classes, |labels, class| {
                    let mut ops = named(labels, "op", class);
                    ops.retain(|(_, op)| op.is_object());
                    ops
                })
            }
            Each::Problem => listed(&status["health"], "page", "page"),
            Each::TlsFile => listed(&status["tls"]["files"], "file", "file"),
            Each::Cause => {
                let causes = listed(&status["slow_requests"]["causes"], "layer", "layer");
                below(causes, |labels, cause| {
                    let reason = cause["reason"].as_str().unwrap_or_default();
                    vec![([labels, &[("reason", reason)]].concat(), cause)]
                })
            }
        }
    }
}

fn below<'a>(
    outer: Vec<(Found<'a>, &'a Value)>,
    inner: impl Fn(&[(&'a str, &'a str)], &'a Value) -> Vec<(Found<'a>, &'a Value)>,
) -> Vec<(Found<'a>, &'a Value)> {
    outer.iter().flat_map(|(labels, place)| inner(labels, place)).collect()
}

/// The fields of an object, by their names.
fn named<'a>(
    outer: &[(&'a str, &'a str)],
    label: &'a str,
    object: &'a Value,
) -> Vec<(Found<'a>, &'a Value)> {
    let fields = object.as_object().into_iter().flat_map(Map::iter);
    fields.map(|(name, value)| ([outer, &[(label, name.as_str())]].concat(), value)).collect()
}

/// The members of a list, each by one of its fields; the first of each name.
fn listed<'a>(list: &'a Value, label: &'a str, field: &str) -> Vec<(Found<'a>, &'a Value)> {
    let mut all: Vec<(Found<'a>, &Value)> = Vec::new();
    for value in list.as_array().into_iter().flatten() {
        let labels = vec![(label, value[field].as_str().unwrap_or_default())];
        let twice = label == "page" && all.iter().any(|(known, _)| *known == labels);
        if !twice {
            all.push((labels, value));
        }
    }
    all
}

fn devices(status: &Value) -> Vec<(Found<'_>, &Value)> {
    listed(&status["pool"]["devices"], "device", "id")
}

fn queues(status: &Value) -> Vec<(Found<'_>, &Value)> {
    let mut all: Vec<(Found<'_>, &Value)> =
        devices(status).into_iter().map(|(labels, device)| (labels, &device["queue"])).collect();
    all.push((vec![("device", "cache")], &status["cache"]["queue"]));
    all.retain(|(_, queue)| queue.is_object());
    all
}

#[cfg(test)]
#[path = "metrics_tests.rs"]
mod tests;
