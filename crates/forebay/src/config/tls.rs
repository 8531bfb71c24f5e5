//! The clients that may connect over TCP: TLS, and the volumes that each client may open.

use std::str::FromStr;

use export::Rule;
use serde::Deserialize;

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
    pub(super) fn name(self) -> &'static str {
        match self {
            TlsMode::Require => "require",
            TlsMode::Offer => "offer",
            TlsMode::Off => "off",
        }
    }
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
