//! Values of the configuration: sizes, times, and the ranges that they may be in.

use std::time::Duration;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};

use crate::error::{CommandError, Result};
use crate::units::{parse_duration, parse_size};

/// A size: a number of bytes, or a text with a unit.
pub(super) fn size<'de, D: Deserializer<'de>>(d: D) -> std::result::Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Size {
        Bytes(u64),
        Text(String),
    }
    match Size::deserialize(d)? {
        Size::Bytes(n) => Ok(Some(n)),
        Size::Text(text) => parse_size(&text).map(Some).map_err(D::Error::custom),
    }
}

/// A time: a text with a unit.
pub(super) fn duration<'de, D: Deserializer<'de>>(
    d: D,
) -> std::result::Result<Option<Duration>, D::Error> {
    parse_duration(&String::deserialize(d)?).map(Some).map_err(D::Error::custom)
}

/// Fails if a value is not in its range.
pub(super) fn within<T: PartialOrd + std::fmt::Debug>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<()> {
    if (&least..=&most).contains(&&value) {
        return Ok(());
    }
    Err(CommandError::Usage(format!("{key} is {value:?}; it can be {least:?} to {most:?}")))
}
