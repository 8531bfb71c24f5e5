//! The clients that may connect over TCP: TLS, and the volumes that each client may open.

use std::path::PathBuf;
use std::str::FromStr;

use export::Rule;
use model::setting::{AccessRule, PlaceItem, PlaceValue};
use serde::Deserialize;
use tls::Credentials;

use super::places::{Places, place_of_path};
use crate::error::{CommandError, Result};

/// The use of TLS by clients over TCP.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TlsMode {
    /// Clients must have TLS.
    Require,
    /// Clients may have TLS.
    Offer,
    /// Clients cannot have TLS.
    Off,
}

impl TlsMode {
    fn name(self) -> &'static str {
        match self {
            TlsMode::Require => "require",
            TlsMode::Offer => "offer",
            TlsMode::Off => "off",
        }
    }
}

/// TLS of a server.
#[derive(Debug)]
pub struct TlsConfig {
    /// The use of TLS by clients over TCP.
    pub mode: TlsMode,
    /// The files of TLS: those that prove the server to clients, and those by which the server
    /// knows clients.
    pub credentials: Credentials,
    /// The rules that say which volumes clients over TLS may open; empty: all.
    pub access: Vec<Rule>,
}

impl TlsConfig {
    /// Whether there is TLS at all.
    pub fn is_on(&self) -> bool {
        let there = self.credentials.certificates.is_some() || self.credentials.keys.is_some();
        there && self.mode != TlsMode::Off
    }
}

/// The part of [`TlsConfig`] that options or a configuration file say.
#[derive(Clone, Default, Debug)]
pub struct TlsOverrides {
    /// See [`TlsConfig`].
    pub mode: Option<TlsMode>,
    /// See [`Credentials`].
    pub certificates: Option<PathBuf>,
    /// See [`Credentials`].
    pub keys: Option<PathBuf>,
    /// See [`Credentials`].
    pub verify_peer: Option<bool>,
    /// See [`TlsConfig`]; an empty list is one, too.
    pub access: Option<Vec<Rule>>,
}

/// A rule as the configuration file has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccessRow {
    client: String,
    volumes: Vec<String>,
    #[serde(default)]
    read_only: bool,
}

impl From<AccessRow> for Rule {
    fn from(row: AccessRow) -> Rule {
        Rule { client: row.client, volumes: row.volumes, read_only: row.read_only }
    }
}

/// `true` or `false`, as an option of the command line.
pub fn parse_flag(text: &str) -> std::result::Result<bool, String> {
    bool::from_str(text).map_err(|_| format!("{text:?} is not true or false"))
}

impl TlsConfig {
    /// Puts together what was said, notes where it comes from, and checks it. `tcp` says that
    /// clients connect over TCP.
    pub(super) fn new(
        options: TlsOverrides,
        file: TlsOverrides,
        tcp: bool,
        places: &mut Places,
    ) -> Result<TlsConfig> {
        let mode = [options.mode, file.mode, Some(TlsMode::Require)];
        let mode = places.choose("nbd.tls", mode, |mode| mode.name().into());
        let mode = mode.unwrap_or(TlsMode::Require);
        let certificates = [options.certificates, file.certificates, None];
        let certificates =
            places.choose("tls.certificates", certificates, |path| place_of_path(path));
        let keys = places.choose("tls.psk", [options.keys, file.keys, None], |p| place_of_path(p));
        let verify = [options.verify_peer, file.verify_peer, Some(true)];
        let verify = places.choose("tls.verify_peer", verify, |on| PlaceValue::Flag(*on));
        let access = [options.access, file.access, Some(Vec::new())];
        let access = places.choose("access", access, |all| {
            PlaceValue::List(all.iter().map(|rule| PlaceItem::Rule(shown(rule))).collect())
        });
        let credentials = Credentials { certificates, keys, verify_peer: verify.unwrap_or(true) };
        let config = TlsConfig { mode, credentials, access: access.unwrap_or_default() };
        config.check(tcp).map_err(|text| CommandError::Usage(text.into()))?;
        Ok(config)
    }

    fn check(&self, tcp: bool) -> std::result::Result<(), &'static str> {
        let known = self.credentials.certificates.is_some() || self.credentials.keys.is_some();
        if self.mode == TlsMode::Offer && !known {
            return Err("nbd.tls is \"offer\", and there is nothing to offer it with: say \
                        tls.certificates or tls.psk (--tls-certificates, --tls-psk)");
        }
        if tcp && self.mode == TlsMode::Require && !known {
            return Err("NBD over TCP needs TLS: say tls.certificates or tls.psk \
                        (--tls-certificates, --tls-psk). If all who can connect may read and \
                        write all volumes, say nbd.tls = \"off\" (--tls off)");
        }
        if self.access.is_empty() {
            return Ok(());
        }
        if !known || self.mode != TlsMode::Require {
            return Err("access rules go by the names of clients, which only TLS proves: say \
                        nbd.tls = \"require\", and tls.certificates or tls.psk");
        }
        if self.access.iter().any(|rule| rule.client.is_empty() || rule.volumes.is_empty()) {
            return Err("a rule of access names a client and its volumes; \"*\" is any");
        }
        Ok(())
    }
}

fn shown(rule: &Rule) -> AccessRule {
    AccessRule {
        client: rule.client.clone(),
        volumes: rule.volumes.clone(),
        read_only: rule.read_only,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(file: TlsOverrides, tcp: bool) -> Result<TlsConfig> {
        TlsConfig::new(TlsOverrides::default(), file, tcp, &mut Places::default())
    }

    fn rule(client: &str) -> Rule {
        Rule { client: client.into(), volumes: vec!["v*".into()], read_only: false }
    }

    #[test]
    fn tcp_is_plain_only_where_one_says_so() {
        let keys = || Some(PathBuf::from("k"));
        let config = of(TlsOverrides { keys: keys(), ..Default::default() }, true).unwrap();
        assert!(config.mode == TlsMode::Require && config.is_on());
        assert!(config.credentials.verify_peer);
        let off = TlsOverrides { mode: Some(TlsMode::Off), ..Default::default() };
        assert!(!of(off.clone(), true).unwrap().is_on());
        assert!(!of(TlsOverrides { keys: keys(), ..off }, true).unwrap().is_on());
        assert!(!of(TlsOverrides::default(), false).unwrap().is_on());
        let offer = TlsOverrides { mode: Some(TlsMode::Offer), ..Default::default() };
        for (said, tcp, word) in [
            (TlsOverrides::default(), true, "--tls off"),
            (offer, false, "--tls-psk"),
            (
                TlsOverrides { access: Some(vec![rule("a")]), ..Default::default() },
                false,
                "require",
            ),
            (
                TlsOverrides {
                    access: Some(vec![rule("a")]),
                    mode: Some(TlsMode::Offer),
                    keys: keys(),
                    ..Default::default()
                },
                true,
                "require",
            ),
            (
                TlsOverrides { access: Some(vec![rule("")]), keys: keys(), ..Default::default() },
                true,
                "names a client",
            ),
        ] {
            let e = of(said, tcp).unwrap_err().to_string();
            assert!(e.contains(word), "{e}");
        }
    }
}
