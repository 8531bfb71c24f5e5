//! The status of a running server: everything of `forebay status`.

use std::path::Path;

use base::{BOUNDS_NS, shell_word};
use model::Status;
use model::io::RequestsByKind;
use model::setting::{Config, PlaceItem, PlaceValue};
use model::status::{Admission, ConfigurationDrift, ConnectionKind, Crowd, ServerStatus};
use model::volume::{Client, ClientProcess, ClientTls, RequestsOfVolume, VolumeIo, VolumeOfStatus};
use nbd::{ClientOrigin, ClientWay, ConnectionStatus, CrowdOutcome};
use pool::VolumeInfo;
use pool::status::io_of_kind;
use volume::VolumeCounts;

use super::Shard;
use crate::config::shown::in_toml;
use crate::config::{place_of_devices, place_of_path};
use crate::serve::credentials::Files;
use crate::serve::explain::Stalls;
use crate::serve::health;

/// For so many seconds a client for which there was no room is told of.
const CROWD_SECONDS: u64 = 300;

impl Shard {
    /// The pool's status, with what only the server knows.
    pub(super) fn status(&self) -> Status {
        let report = self.volumes.pool().status();
        let mut pool = report.pool;
        for device in &mut pool.devices {
            device.emulate = self.devices.emulated(&device.path);
            if device.path.is_empty() {
                device.last_path = self.devices.last_path(&device.id);
                let gone = || self.devices.why_gone(device.last_path.as_deref());
                device.missing_because = device.missing_because.take().or_else(gone);
            }
        }
        let requests = self.volumes.requests();
        let stalls = Stalls::of(self.rt.ledger(), self.rt.moment());
        let waits = self.volumes.waits();
        let mut status = Status {
            server: self.server_status(),
            tls: self.certificates.as_ref().map(Files::status),
            pool,
            cache: self.volumes.cache().map(|cache| cache.status()),
            drift: self.drift(),
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
            connections_crowded_out: clients.crowded_out,
            crowds: self.crowds(&clients.crowds),
            tls_handshakes: clients.handshakes,
            tls_handshakes_failed: clients.handshakes_failed,
            requests_in_flight: clients.requests,
            payload_bytes: clients.payload_bytes,
            resident_bytes: resident_bytes(),
            nbd_uris: Some(self.nbd_uris.clone()),
        }
    }

    /// Clients for which there was no room within the last minutes.
    fn crowds(&self, nbd: &[Option<nbd::Crowd>; 2]) -> Vec<Crowd> {
        let now = self.rt.now();
        let of_nbd = nbd.iter().flatten().map(|crowd| Crowd {
            kind: match crowd.origin.way() {
                ClientWay::Local => ConnectionKind::NbdUnix,
                ClientWay::Tcp => ConnectionKind::NbdTcp,
            },
            from: crowd.origin.to_string(),
            refused: crowd.outcome == CrowdOutcome::Refused,
            seconds_ago: now.since(crowd.at).as_secs(),
        });
        let http = self.http.as_ref().and_then(|http| http.last());
        let of_http = http.map(|crowd| Crowd {
            kind: ConnectionKind::Http,
            from: crowd.from.to_string(),
            refused: crowd.refused,
            seconds_ago: crowd.at.elapsed().as_secs(),
        });
        of_nbd.chain(of_http).filter(|crowd| crowd.seconds_ago < CROWD_SECONDS).collect()
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
        let now = self.rt.now();
        let one = |c: ConnectionStatus| Client {
            number: c.number,
            address: match c.origin {
                ClientOrigin::Tcp(address) => Some(address.to_string()),
                ClientOrigin::Process { .. } | ClientOrigin::Local => None,
            },
            process: match c.origin {
                ClientOrigin::Process { pid, uid } => {
                    Some(ClientProcess { pid, uid, program: program_of(pid) })
                }
                ClientOrigin::Tcp(_) | ClientOrigin::Local => None,
            },
            export: c.export,
            read_only: c.read_only,
            requests: c.requests,
            tls: c.peer.map(|peer| ClientTls {
                version: peer.version.to_owned(),
                cipher: peer.cipher.to_owned(),
                proof: peer.proof,
                names: peer.names,
            }),
            connected_seconds: Some(now.since(c.accepted_at).as_secs()),
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
        let named = self.tuning.place("devices");
        if self.devices.keep_a_list() || named.items().is_empty() || now == named {
            return None;
        }
        let mut text = match self.tuning.file() {
            Some(file) if self.devices.drift().is_none_or(|drift| drift.is_found) => {
                let devices = in_toml(&now).unwrap_or_default();
                format!(
                    "the next start finds the devices by itself; to make {} agree with the pool, \
                     say there: devices = {devices}",
                    file.display()
                )
            }
            Some(_) => self.drift().map(|drift| drift.todo).unwrap_or_default(),
            None => format!(
                "when the server is started next, name the devices as they are now: {}",
                self.named_now()
            ),
        };
        let leaving = self.volumes.pool().moves().moves_status().leaving;
        if !leaving.is_empty() {
            text += &format!("; without {} once it is out of the pool", leaving.join(", "));
        }
        Some(text)
    }

    /// How the configuration differs from what the pool has.
    fn drift(&self) -> Option<ConfigurationDrift> {
        let drift = self.devices.drift()?;
        let finds = self.devices.are_found();
        let is_found = finds && drift.is_found;
        let mut say = Vec::new();
        if !(drift.unnamed_devices.is_empty() && drift.needless_devices.is_empty()) {
            say.extend(match finds {
                true => in_toml(&self.devices_now()).map(|devices| format!("devices = {devices}")),
                false => Some(self.named_now()),
            });
        }
        if drift.unnamed_cache.is_some() || drift.needless_cache.is_some() {
            say.push(match (&drift.unnamed_cache, finds) {
                (Some(path), true) => {
                    let path = in_toml(&PlaceValue::Text(path.clone())).unwrap_or_default();
                    format!("path = {path} in [cache]")
                }
                (Some(path), false) => format!("--cache {}", shell_word(path)),
                (None, true) => "nothing in [cache] of path and size".to_owned(),
                (None, false) => "no --cache".to_owned(),
            });
        }
        let all = say.join(if finds { ", and " } else { " " });
        let todo = match (self.tuning.file(), finds) {
            (Some(file), true) if is_found => format!(
                "nothing has to be done, as a start finds what the pool has; to make them agree, \
                 say in {}: {all}",
                file.display()
            ),
            (Some(file), true) => format!(
                "nothing that {} names is in the pool any more, so the next start would not find \
                 it: say there {all}; or name = {:?} in [pool]",
                file.display(),
                self.volumes.pool().status().pool.name
            ),
            (None, true) => "nothing has to be done, as a start finds what the pool has".to_owned(),
            (_, false) => format!("when the server is started next, say: {all}"),
        };
        Some(ConfigurationDrift { is_found, todo, ..drift })
    }

    /// The devices as options of the command line.
    fn named_now(&self) -> String {
        let now = self.devices_now();
        let one =
            |path: &str| format!("--device {}", shell_word(&self.devices.choice(path).to_string()));
        now.items().iter().filter_map(PlaceItem::path).map(one).collect::<Vec<_>>().join(" ")
    }

    /// The devices of the pool, as the configuration file has them.
    pub(super) fn devices_now(&self) -> PlaceValue {
        let (mut devices, mut missing) = (Vec::new(), false);
        for device in self.volumes.pool().status().pool.devices {
            match device.path.is_empty() {
                true => match self.devices.last_path(&device.id) {
                    Some(path) => devices.push(self.devices.choice(&path)),
                    None => missing = true,
                },
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

/// The name of the program of a process, as far as the system tells.
fn program_of(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim_end().to_owned())
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
