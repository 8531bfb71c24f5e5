//! Whether what is said can be: each section, and all of them together.

use std::path::Path;

use tls::Credentials;

use super::http::HttpPlace;
use super::sections::{Complete, HttpSection, Sections, TlsSection};
use super::tls::TlsMode;
use crate::error::{CommandError, Result};
use crate::host::sockets::check_unix_path;
use crate::host::world::check_distinct;

impl TlsSection {
    /// Whether there is anything by which the server and clients know each other.
    fn is_given(&self) -> bool {
        self.certificates.is_some() || self.psk.is_some()
    }

    /// Whether clients that must have TLS are known by a name.
    pub fn proves_clients(&self) -> bool {
        *self.verify_peer.said() || self.certificates.is_none()
    }

    /// The files of TLS.
    pub fn credentials(&self) -> Credentials {
        let TlsSection { certificates, psk, verify_peer } = self.clone();
        Credentials { certificates, keys: psk, verify_peer: *verify_peer.said() }
    }
}

impl Sections {
    /// Fails if what is said cannot be. `size_at` is the place that says the size of the cache.
    pub(super) fn check(&mut self, size_at: &str) -> Result<()> {
        if self.devices.is_empty() && self.pool.name.is_none() {
            let text = "no device is named, and no pool: devices, or name in [pool]";
            return Err(CommandError::Usage(text.into()));
        }
        let cache = &self.cache;
        if cache.path.is_none() && cache.size.is_some_and(|n| n > 0) {
            let text = "a size of a cache is given, and no path: --cache PATH, or path in [cache]";
            return Err(CommandError::Usage(format!("{size_at}{text}")));
        }
        check_distinct(self.devices.iter().map(|d| d.path.as_path()).chain(cache.path.as_deref()))?;
        check_sockets(self.nbd.socket.said(), self.control.socket.said())?;
        self.check_tls().map_err(|text| CommandError::Usage(text.into()))?;
        self.http.check([self.nbd.socket.said(), self.control.socket.said()])
    }

    /// Whether there is TLS at all.
    pub fn has_tls(&self) -> bool {
        self.tls.is_given() && *self.nbd.tls.said() != TlsMode::Off
    }

    /// Whether clients over TCP must have TLS.
    pub fn requires_tls(&self) -> bool {
        *self.nbd.tls.said() == TlsMode::Require
    }

    /// Fails if TLS, addresses and rules of access contradict each other.
    fn check_tls(&self) -> std::result::Result<(), &'static str> {
        let (known, access) = (self.tls.is_given(), self.access.said());
        if *self.nbd.tls.said() == TlsMode::Offer && !known {
            return Err("nbd.tls is \"offer\", and there is nothing to offer it with: say \
                        tls.certificates or tls.psk (--tls-certificates, --tls-psk)");
        }
        if !self.nbd.listen.is_empty() && self.requires_tls() && !known {
            return Err("NBD over TCP needs TLS: say tls.certificates or tls.psk \
                        (--tls-certificates, --tls-psk). If all who can connect may read and \
                        write all volumes, say nbd.tls = \"off\" (--tls off)");
        }
        if access.is_empty() {
            return Ok(());
        }
        if !known || !self.requires_tls() {
            return Err("access rules go by the names of clients, which only TLS proves: say \
                        nbd.tls = \"require\", and tls.certificates or tls.psk");
        }
        if access.iter().any(|rule| rule.client.is_empty() || rule.volumes.is_empty()) {
            return Err("a rule of access names a client and its volumes; \"*\" is any");
        }
        Ok(())
    }
}

impl HttpSection {
    /// Settles where it listens, and checks that. `others` are sockets for something else.
    fn check(&mut self, others: [&Path; 2]) -> Result<()> {
        if self.listen.contains(&HttpPlace::None) {
            if self.listen.len() > 1 {
                let text = "HTTP is to listen somewhere and at none: say one of them";
                return Err(CommandError::Usage(text.into()));
            }
            self.listen.clear();
        }
        for place in &self.listen {
            if let HttpPlace::Unix(path) = place {
                check_unix_path(path).map_err(CommandError::Usage)?;
                if others.contains(&path.as_path()) {
                    let path = path.display();
                    let text = format!("HTTP cannot share the socket {path} with NBD or control");
                    return Err(CommandError::Usage(text));
                }
            }
        }
        Ok(())
    }
}

fn check_sockets(nbd: &Path, control: &Path) -> Result<()> {
    for path in [nbd, control] {
        check_unix_path(path).map_err(CommandError::Usage)?;
    }
    if nbd == control {
        let text = format!("NBD and control cannot share the socket {}", nbd.display());
        return Err(CommandError::Usage(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use export::Rule;

    use super::*;

    fn of(say: impl FnOnce(&mut Sections)) -> Sections {
        let mut said = Sections::default();
        say(&mut said);
        said.complete(Path::new("home"));
        said
    }

    fn tcp(said: &mut Sections) {
        said.nbd.listen = vec!["127.0.0.1:0".parse().unwrap()];
    }

    fn keys(said: &mut Sections) {
        said.tls.psk = Some("k".into());
    }

    fn rule(said: &mut Sections, client: &str) {
        let volumes = vec!["v*".into()];
        said.access = Some(vec![Rule { client: client.into(), volumes, read_only: false }]);
    }

    #[test]
    fn tcp_is_plain_only_where_one_says_so() {
        let with_keys = of(|said| (tcp(said), keys(said)).0);
        assert_eq!(with_keys.check_tls(), Ok(()));
        assert!(with_keys.requires_tls() && with_keys.has_tls());
        assert!(with_keys.tls.credentials().verify_peer);
        let off = |said: &mut Sections| said.nbd.tls = Some(TlsMode::Off);
        for said in [
            of(|said| (tcp(said), off(said)).0),
            of(|said| (tcp(said), off(said), keys(said)).0),
            of(|_| ()),
        ] {
            assert_eq!((said.check_tls(), said.has_tls()), (Ok(()), false));
        }
        let offer = |said: &mut Sections| said.nbd.tls = Some(TlsMode::Offer);
        for (said, word) in [
            (of(tcp), "--tls off"),
            (of(offer), "--tls-psk"),
            (of(|said| rule(said, "a")), "require"),
            (of(|said| (tcp(said), rule(said, "a"), offer(said), keys(said)).0), "require"),
            (of(|said| (tcp(said), rule(said, ""), keys(said)).0), "names a client"),
        ] {
            let e = said.check_tls().unwrap_err();
            assert!(e.contains(word), "{e}");
        }
    }
}
