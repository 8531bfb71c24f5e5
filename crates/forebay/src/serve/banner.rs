//! The text that a server prints when it begins to serve: its addresses, and how to use it.

use std::net::SocketAddr;
use std::path::PathBuf;

use base::shell_word;
use model::Status;
use model::volume::VolumeOfStatus;

use crate::config::{Complete, ServeConfig};
use crate::error::Result;
use crate::host::logs::{self, LogFormat};
use crate::host::sockets::{nbd_uri_tcp, nbd_uri_unix};
use crate::units::human_bytes;

/// The number of volumes that are listed; there may be thousands.
const LISTED: usize = 10;

/// The name of a volume that [`ServerAddresses::nbd_uris`] replaces: the first of it in a URI is
/// the name.
const VOLUME_MARK: &str = "VOLUME";

/// The addresses of a server.
pub struct ServerAddresses {
    nbd_socket: PathBuf,
    nbd_listen: Vec<SocketAddr>,
    /// True if clients on TCP have TLS.
    encrypted: bool,
    control_socket: PathBuf,
    /// The addresses of the HTTP API, once the API listens.
    pub http: Vec<String>,
    log: LogFormat,
}

impl ServerAddresses {
    /// Of a server with this configuration.
    pub fn of(config: &ServeConfig) -> ServerAddresses {
        let said = &config.said;
        ServerAddresses {
            nbd_socket: said.nbd.socket.said().clone(),
            nbd_listen: said.nbd.listen.clone(),
            encrypted: said.has_tls(),
            control_socket: said.control.socket.said().clone(),
            http: Vec::new(),
            log: *said.log.format.said(),
        }
    }

    /// The URIs of volumes, with `{volume}` in the place of the name.
    pub fn nbd_uris(&self) -> Vec<String> {
        // A name is percent-encoded in a URI, and so is a path: neither has braces.
        let of = |uri: String| uri.replacen(VOLUME_MARK, "{volume}", 1);
        let unix = nbd_uri_unix(&self.nbd_socket, VOLUME_MARK);
        let tcp = self.nbd_listen.iter();
        let tcp = tcp.map(|&address| nbd_uri_tcp(address, self.encrypted, VOLUME_MARK));
        std::iter::once(unix).chain(tcp).map(of).collect()
    }
}

/// Prints it, with what else the user should hear. Where programs read what the server says it is
/// in the log, with fields.
pub fn tell(places: &ServerAddresses, status: &Status, notes: &[String]) -> Result<()> {
    if places.log == LogFormat::Human {
        return logs::print(&text(places, status, notes));
    }
    for note in notes {
        match note.strip_prefix("WARNING: ") {
            Some(warning) => tracing::warn!("{warning}"),
            None => tracing::info!("{note}"),
        }
    }
    let (pool, cache) = (&status.pool, &status.cache);
    let listens: Vec<String> = places.nbd_listen.iter().map(|a| a.to_string()).collect();
    tracing::info!(
        pool = pool.name,
        state = %pool.state,
        devices = pool.devices.len(),
        copies = pool.copies,
        cache = cache.as_ref().map(|cache| cache.path.as_str()),
        volumes = status.volumes.len(),
        nbd_socket = %places.nbd_socket.display(),
        nbd_listen = listens.join(" "),
        control_socket = %places.control_socket.display(),
        http = places.http.join(" "),
        "the pool is served"
    );
    Ok(())
}

fn text(places: &ServerAddresses, status: &Status, notes: &[String]) -> String {
    let pool = &status.pool;
    let mut out = format!(
        "Serving the pool {:?}: {}, devices: {}, copies of every block: {}\n",
        pool.name,
        pool.state,
        pool.devices.len(),
        pool.copies
    );
    if let Some(cache) = &status.cache {
        let size = human_bytes(cache.size_bytes);
        out += &format!("Cache: {}, room for {size}, {}\n", cache.path, cache.mode);
    }
    for place in &places.http {
        let what = match place.starts_with("http") {
            true => "In a browser (also the HTTP API and metrics)",
            false => "HTTP API and metrics",
        };
        out += &format!("{what}: {place}\n");
    }
    for note in notes {
        out += &format!("{note}\n");
    }
    out.push('\n');
    let volumes = &status.volumes;
    for VolumeOfStatus { volume, .. } in volumes.iter().take(LISTED) {
        let (name, size) = (&volume.name, human_bytes(volume.size_bytes));
        out += &format!("  {name}  {size}  {}\n", nbd_uri_unix(&places.nbd_socket, name));
        for &address in &places.nbd_listen {
            out += &format!("  {name}  {size}  {}\n", nbd_uri_tcp(address, places.encrypted, name));
        }
    }
    if volumes.len() > LISTED {
        out += &format!("  and {} more: forebay volume list\n", volumes.len() - LISTED);
    }
    let control = shell_word(&places.control_socket.display().to_string());
    let Some(first) = volumes.first().map(|v| v.volume.name.as_str()) else {
        out += &format!(
            "  no volume yet; make one: forebay volume create NAME --size 8G --socket {control}\n"
        );
        return out;
    };
    let uri = shell_word(&nbd_uri_unix(&places.nbd_socket, first));
    let first = shell_word(first);
    out += &format!(
        "\nUse it with any NBD client, for example:\n  \
         qemu-img info {uri}\n  \
         qemu-system-x86_64 -drive file={uri},format=raw,if=virtio,discard=unmap\n\
         As a file system of this machine, by root:\n  \
         forebay mount {first} /mnt --make ext4 --socket {control}\n\
         See what it does: forebay status --socket {control}\n"
    );
    out
}

#[cfg(test)]
mod tests {
    use model::cache::CacheStatus;
    use model::status::PoolState;
    use model::volume::Volume;

    use super::*;

    fn places() -> ServerAddresses {
        ServerAddresses {
            nbd_socket: "/d/n b.sock".into(),
            nbd_listen: vec!["127.0.0.1:10809".parse().unwrap()],
            encrypted: true,
            control_socket: "/d/c'.sock".into(),
            http: vec!["unix:/d/h.sock".into(), "http://127.0.0.1:1 (no token)".into()],
            log: LogFormat::Human,
        }
    }

    #[test]
    fn uris_are_words_and_examples_are_quoted() {
        let volume = |i| {
            let name = format!("vol{i}");
            let volume = Volume { name, size_bytes: 8 << 30, ..Volume::default() };
            VolumeOfStatus { volume, ..VolumeOfStatus::default() }
        };
        let mut status = Status { volumes: (0..12).map(volume).collect(), ..Status::default() };
        status.pool.state = PoolState::Degraded;
        let (path, size_bytes) = ("/c.img".to_owned(), 2 << 30);
        status.cache = Some(CacheStatus { path, size_bytes, ..CacheStatus::default() });
        let text = text(&places(), &status, &["WARNING: device 1 is missing".into()]);
        assert!(text.contains("  vol0  8 GiB  nbd+unix:///vol0?socket=/d/n%20b.sock\n"), "{text}");
        assert!(text.contains("\nHTTP API and metrics: unix:/d/h.sock\n"), "{text}");
        let browser =
            "\nIn a browser (also the HTTP API and metrics): http://127.0.0.1:1 (no token)\n";
        assert!(text.contains(browser), "{text}");
        assert!(text.contains("\n  forebay mount vol0 /mnt --make ext4 --socket '/d/c"), "{text}");
        assert!(text.contains("\nCache: /c.img, room for 2 GiB, writeback\n"), "{text}");
        assert!(
            text.contains("nbds://127.0.0.1:10809/vol9\n") && !text.contains("/vol10"),
            "{text}"
        );
        assert!(
            text.contains("and 2 more")
                && text.contains("degraded")
                && text.contains("WARNING: device 1"),
            "{text}"
        );
        assert!(text.contains(r"--socket '/d/c'\''.sock'"), "{text}");
        assert!(text.contains("qemu-img info 'nbd+unix:///vol0?socket=/d/n%20b.sock'\n"), "{text}");
    }

    #[test]
    fn uris_have_a_place_for_the_name() {
        let uris = ["nbd+unix:///{volume}?socket=/d/n%20b.sock", "nbds://127.0.0.1:10809/{volume}"];
        assert_eq!(places().nbd_uris(), uris);
    }

    #[test]
    fn without_a_volume_it_says_how_to_make_one() {
        assert!(text(&places(), &Status::default(), &[]).contains("forebay volume create"));
    }
}
