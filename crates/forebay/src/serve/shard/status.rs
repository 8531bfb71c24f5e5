//! The status of a running server: everything of `forebay status`.

use std::path::Path;

use base::{BOUNDS_NS, shell_word};
use model::Status;
use model::io::RequestsByKind;
use model::setting::{Config, PlaceItem, PlaceValue};
use model::status::{Admission, ServerStatus};
use model::volume::{Client, ClientTls, RequestsOfVolume, VolumeIo, VolumeOfStatus};
use nbd::ConnectionStatus;
use pool::VolumeInfo;
use pool::status::io_of_kind;
use volume::VolumeCounts;

use super::Shard;
use crate::config::shown::in_toml;
use crate::config::{place_of_devices, place_of_path};
use crate::serve::credentials::Files;
use crate::serve::explain::Stalls;
use crate::serve::health;

impl Shard {
    /// The pool's status, with what only the server knows.
    pub(super) fn status(&self) -> Status {
        let report = self.volumes.pool().status();
        let mut pool = report.pool;
        for device in &mut pool.devices {
            device.emulate = self.devices.emulated(&device.path);
        }
        let requests = self.volumes.requests();
        let stalls = Stalls::of(self.rt.ledger(), self.rt.moment());
        let waits = self.volumes.waits();
        let mut status = Status {
            server: self.server_status(),
            tls: self.certificates.as_ref().map(Files::status),
            pool,
            cache: self.volumes.cache().map(|cache| cache.status()),
            volumes: report.volumes.into_iter().map(|info| self.volume_status(info)).collect(),
            health: Vec::new(),
            requests: RequestsByKind {
                read: io_of_kind(&requests.read),
                write: io_of_kind(&requests.write),
                flush: io_of_kind(&requests.flush),
                discard: io_of_kind(&requests.discard),
                zero: io_of_kind(&requests.zero),
            },
            latency_bounds_us: BOUNDS_NS.iter().map(|ns| ns / 1_000).collect(),
            admission: Admission {
                waiting: waits.waiting,
                waited_for_limit: waits.limited,
                waited_for_share: waits.shared,
            },
            stalls: stalls.first_cause(),
            slow_requests: stalls.slow_requests(),
            commit: report.commit,
            io: report.io,
            read_ahead: report.read_ahead,
            memory: report.memory,
        };
        status.health = health::problems(&status);
        status
    }

    fn server_status(&self) -> ServerStatus {
        let clients = self.nbd.status();
        ServerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            io_backend: self.backend,
            uptime_seconds: self.rt.now().since(self.started).as_secs(),
            connections: clients.connections as u64,
            connections_max: self.tuning.limits().max_connections as u64,
            connections_accepted: clients.accepted,
            connections_refused: clients.refused,
            tls_handshakes: clients.handshakes,
            tls_handshakes_failed: clients.handshakes_failed,
            requests_in_flight: clients.requests,
            payload_bytes: clients.payload_bytes,
            resident_bytes: resident_bytes(),
        }
    }

    fn volume_status(&self, info: VolumeInfo) -> VolumeOfStatus {
        let id = info.id;
        let requests = self.volumes.requests_of(id).map(|stats| RequestsOfVolume {
            read: of_volume(&stats.read),
            write: of_volume(&stats.write),
            flush: of_volume(&stats.flush),
            discard: of_volume(&stats.discard),
            zero: of_volume(&stats.zero),
        });
        VolumeOfStatus { volume: info.into(), id: id.0, requests }
    }

    /// The clients that are connected.
    pub(super) fn clients(&self) -> Vec<Client> {
        let one = |c: ConnectionStatus| Client {
            number: c.number,
            address: c.address.map(|address| address.to_string()),
            export: c.export,
            read_only: c.read_only,
            requests: c.requests,
            tls: c.peer.map(|peer| ClientTls {
                version: peer.version.to_owned(),
                cipher: peer.cipher.to_owned(),
                proof: peer.proof,
                names: peer.names,
            }),
        };
        self.nbd.connections().into_iter().map(one).collect()
    }

    /// Returns the configuration that the server goes by: as it was started, with what has changed
    /// since.
    pub(super) fn config(&self) -> Config {
        self.tuning.config(self.devices_now(), self.cache_now())
    }

    /// Returns the place of the cache, as the configuration file has it.
    pub(super) fn cache_now(&self) -> PlaceValue {
        let cache = self.volumes.cache();
        cache.map_or(PlaceValue::None, |cache| place_of_path(Path::new(&cache.status().path)))
    }

    /// Returns what has to be said at the next start that was not said at this one; nothing if that
    /// start finds the devices of the pool as they are now.
    pub(super) fn next_start(&self) -> Option<String> {
        let now = self.devices_now();
        if self.devices.keeps_list() || now == self.tuning.place("devices") {
            return None;
        }
        let mut text = match self.tuning.file() {
            Some(file) => {
                let devices = in_toml(&now).unwrap_or_default();
                format!(
                    "before the server is started next, say in {}: devices = {devices}",
                    file.display()
                )
            }
            None => {
                let one = |path: &str| {
                    format!("--device {}", shell_word(&self.devices.choice(path).to_string()))
                };
                let all = now.items().iter().filter_map(PlaceItem::path).map(one);
                format!(
                    "when the server is started next, name the devices as they are now: {}",
                    all.collect::<Vec<_>>().join(" ")
                )
            }
        };
        let leaving = self.volumes.pool().moves().moves_status().leaving;
        if !leaving.is_empty() {
            text += &format!("; without {} once it is out of the pool", leaving.join(", "));
        }
        Some(text)
    }

    /// The devices of the pool, as the configuration file has them.
    pub(super) fn devices_now(&self) -> PlaceValue {
        let (mut devices, mut missing) = (Vec::new(), false);
        for device in self.volumes.pool().status().pool.devices {
            match device.path.is_empty() {
                true => missing = true,
                false => devices.push(self.devices.choice(&device.path)),
            }
        }
        let mut now = place_of_devices(&devices).items().to_vec();
        let named = self.tuning.place("devices");
        // One that is missing has no path, but that under which it was looked for.
        if missing {
            let gone = named.items().iter().filter(|one| !now.contains(one)).cloned();
            let gone: Vec<PlaceItem> = gone.collect();
            now.extend(gone);
        }
        let is_same = now.len() == named.items().len()
            && now.iter().all(|entry| named.items().contains(entry));
        if is_same { named } else { PlaceValue::List(now) }
    }
}

/// Returns the counts of the requests of clients to a volume.
fn of_volume(counts: &VolumeCounts) -> VolumeIo {
    let latency = &counts.latency;
    let at_most = if counts.count > 0 { latency.at_most_bounds().to_vec() } else { Vec::new() };
    VolumeIo {
        count: counts.count,
        bytes: counts.bytes,
        latency_sum_us: latency.sum_ns() as f64 / 1e3,
        latency_at_most: at_most,
    }
}

/// Memory that this process has, as far as the kernel tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}
