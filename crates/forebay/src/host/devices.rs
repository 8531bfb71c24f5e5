//! A device as it is named: a path, and what the device is made to behave like.
//!
//! On the command line it is `PATH[,emulate=hdd|ssd]`, where a comma of the path itself is written
//! twice; in a configuration file a path, or a table with `path` and `emulate`, where commas mean
//! nothing. What is emulated is nowhere stored: it holds for as long as the device is open.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use emulate::Emulate;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

/// A device of the pool, not opened yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceChoice {
    /// The path of the device.
    pub path: PathBuf,
    /// The behaviour that the device is made to have.
    pub emulate: Option<Emulate>,
}

impl From<PathBuf> for DeviceChoice {
    fn from(path: PathBuf) -> DeviceChoice {
        DeviceChoice { path, emulate: None }
    }
}

impl fmt::Display for DeviceChoice {
    /// As it is written on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path.display().to_string().replace(',', ",,"))?;
        self.emulate.map_or(Ok(()), |what| write!(f, ",emulate={what}"))
    }
}

fn emulated(text: &str) -> Result<Emulate, String> {
    text.parse().map_err(|_| format!("emulate is {text:?}; it can be hdd or ssd"))
}

impl DeviceChoice {
    /// Reads what stands on a command line.
    pub fn parse(text: &OsStr) -> Result<DeviceChoice, String> {
        let mut parts = split(text.as_bytes()).into_iter();
        let path = PathBuf::from(OsString::from_vec(parts.next().unwrap_or_default()));
        if path.as_os_str().is_empty() {
            return Err("a device needs a path".into());
        }
        let mut device = DeviceChoice::from(path);
        for part in parts {
            let option = String::from_utf8_lossy(&part);
            let Some(value) = option.strip_prefix("emulate=") else {
                return Err(format!(
                    "{option:?} is no option of a device; emulate=hdd and emulate=ssd are, \
                     and a comma of the path itself is written twice"
                ));
            };
            if device.emulate.replace(emulated(value)?).is_some() {
                return Err("emulate is given twice".into());
            }
        }
        Ok(device)
    }

    /// For command-line arguments.
    pub fn parser() -> impl TypedValueParser<Value = DeviceChoice> {
        OsStringValueParser::new().try_map(|text| DeviceChoice::parse(&text))
    }

    /// Says so if it is not as fast as it could be.
    pub fn warn(&self) {
        let Some(what) = self.emulate else { return };
        let like = match what {
            Emulate::Hdd => "a rotating disk of 7200 revolutions a minute without a write cache",
            Emulate::Ssd => "an SSD on SATA",
        };
        let path = self.path.display();
        tracing::warn!(
            path = %path,
            emulate = what.word(),
            "{path} is SLOW ON PURPOSE: it behaves like {like} (emulate={what})"
        );
    }
}

/// Cuts at single commas; of two in a row one stays.
fn split(text: &[u8]) -> Vec<Vec<u8>> {
    let (mut parts, mut part) = (Vec::new(), Vec::new());
    let mut bytes = text.iter().copied().peekable();
    while let Some(b) = bytes.next() {
        if b == b',' && bytes.next_if_eq(&b',').is_none() {
            parts.push(std::mem::take(&mut part));
        } else {
            part.push(b);
        }
    }
    parts.push(part);
    parts
}

impl<'de> Deserialize<'de> for DeviceChoice {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<DeviceChoice, D::Error> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct DeviceOptions {
            path: PathBuf,
            emulate: Option<String>,
        }
        struct PathOrTable;
        impl<'de> Visitor<'de> for PathOrTable {
            type Value = DeviceChoice;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a path, or a table with path and emulate")
            }
            fn visit_str<E: serde::de::Error>(self, path: &str) -> Result<DeviceChoice, E> {
                Ok(PathBuf::from(path).into())
            }
            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<DeviceChoice, M::Error> {
                let table = DeviceOptions::deserialize(MapAccessDeserializer::new(map))?;
                let emulate = table
                    .emulate
                    .map(|text| emulated(&text))
                    .transpose()
                    .map_err(M::Error::custom)?;
                Ok(DeviceChoice { path: table.path, emulate })
            }
        }
        d.deserialize_any(PathOrTable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(String, Option<Emulate>), String> {
        let device = DeviceChoice::parse(OsStr::new(text))?;
        assert_eq!(DeviceChoice::parse(OsStr::new(&device.to_string())), Ok(device.clone()));
        Ok((device.path.display().to_string(), device.emulate))
    }

    #[test]
    fn paths_and_options_are_told_apart() {
        for (text, path, emulate) in [
            ("a", "a", None),
            ("/dev/sda,emulate=hdd", "/dev/sda", Some(Emulate::Hdd)),
            ("a,emulate=ssd", "a", Some(Emulate::Ssd)),
            ("a,,b", "a,b", None),
            ("a,,emulate=hdd", "a,emulate=hdd", None),
            ("a,,b,,,emulate=hdd", "a,b,", Some(Emulate::Hdd)),
        ] {
            assert_eq!(parse(text), Ok((path.to_owned(), emulate)), "{text}");
        }
        let odd = OsStr::from_bytes(b"a\xff,emulate=hdd");
        let device = DeviceChoice::parse(odd).unwrap();
        assert_eq!(
            (device.path.as_os_str().as_bytes(), device.emulate),
            (&b"a\xff"[..], Some(Emulate::Hdd))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, words) in [
            ("a,emulate=tape", &["emulate", "tape", "hdd or ssd"][..]),
            ("a,emulate=", &["emulate", "hdd or ssd"]),
            ("a,emulat=hdd", &["emulat=hdd", "no option", "written twice"]),
            ("a,b", &["\"b\"", "no option", "written twice"]),
            ("a,", &["no option"]),
            ("a,emulate=hdd,emulate=ssd", &["twice"]),
            (",emulate=hdd", &["path"]),
        ] {
            let e = parse(text).unwrap_err();
            assert!(words.iter().all(|word| e.contains(word)), "{text}: {e}");
        }
    }
}
