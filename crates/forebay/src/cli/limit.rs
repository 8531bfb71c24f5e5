//! `forebay volume limit`: how much clients may ask of a volume.

use clap::Args;
use model::request;
use model::volume::VolumeLimit;

use crate::cli::options::ClientOptions;
use crate::error::Result;
use crate::output::{is_json, print, print_json};
use crate::units::{exact_duration, human_bytes, parse_duration, parse_size};

/// Limit what clients may ask of a volume, at once; kept until it is said anew
///
/// Reads and writes wait where they would exceed the limit. A rate that is not given stays as it
/// is; `none` removes it. Every request counts but FLUSH; bytes are those that are read and
/// written. Without an option: shows the limit.
#[derive(Args, Debug)]
pub struct Limit {
    /// The volume
    #[arg(add = crate::cli::candidates::volumes())]
    name: String,
    /// Requests a second, or none
    #[arg(long, value_name = "N", value_parser = iops)]
    iops: Option<u32>,
    /// Bytes a second, such as 50M, or none
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    bandwidth: Option<u64>,
    /// Time of each rate that a volume saves up while it is idle [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = burst)]
    burst: Option<u32>,
    /// Remove all limits of the volume
    #[arg(long, conflicts_with_all = ["iops", "bandwidth", "burst"])]
    none: bool,
    #[command(flatten)]
    client: ClientOptions,
}

/// A rate that is to be removed is 0 to the server; what is given as 0 is a mistake.
fn or_none<T: Default + PartialEq>(
    text: &str,
    parse: impl FnOnce(&str) -> std::result::Result<T, String>,
) -> std::result::Result<T, String> {
    if text == "none" {
        return Ok(T::default());
    }
    match parse(text)? {
        zero if zero == T::default() => {
            Err("0 would stop the volume; say none for no limit".to_owned())
        }
        rate => Ok(rate),
    }
}

fn iops(text: &str) -> std::result::Result<u32, String> {
    let number = |text: &str| {
        text.parse().map_err(|_| format!("{text:?} is not a number of requests a second, or none"))
    };
    or_none(text, number)
}

fn bandwidth(text: &str) -> std::result::Result<u64, String> {
    or_none(text, |text| parse_size(text).map_err(|e| format!("{e}, or none")))
}

fn burst(text: &str) -> std::result::Result<u32, String> {
    let time = parse_duration(text)?;
    let ms = time.as_millis();
    if time.subsec_nanos() % 1_000_000 != 0 {
        return Err("a burst is a number of whole milliseconds, at least 1ms".to_owned());
    }
    u32::try_from(ms).map_err(|_| "a burst is at most 1h".to_owned())
}

impl Limit {
    pub fn run(self) -> Result<()> {
        let Limit { name, iops, bandwidth, burst, none, client } = self;
        let removed = none.then_some(0);
        let request = request::VolumeLimit {
            name,
            iops: iops.or(removed),
            bytes_per_second: bandwidth.or(removed.map(u64::from)),
            burst_ms: burst,
        };
        let answer = client.ask(request)?;
        if is_json() {
            return print_json(&answer.limit);
        }
        let (limit, before) = (text(answer.limit.as_ref()), text(answer.before.as_ref()));
        let was = if limit == before { String::new() } else { format!(" (it was: {before})") };
        print(&format!("{limit}{was}\n"))
    }
}

/// A limit for people.
pub fn text(limit: Option<&VolumeLimit>) -> String {
    let Some(limit) = limit else { return "none".to_owned() };
    let iops = limit.iops.map(|n| format!("{n} IOPS"));
    let bytes = limit.bytes_per_second.map(|n| format!("{}/s", human_bytes(n.get())));
    let rates: Vec<String> = iops.into_iter().chain(bytes).collect();
    if rates.is_empty() {
        return "none".to_owned();
    }
    let burst = exact_duration(std::time::Duration::from_millis(limit.burst_ms.get().into()));
    format!("{}, burst {burst}", rates.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_read_it() {
        let limit = |iops: u32, bytes: u64, burst_ms: u32| VolumeLimit {
            iops: iops.try_into().ok(),
            bytes_per_second: bytes.try_into().ok(),
            burst_ms: burst_ms.try_into().unwrap(),
        };
        for (limit, want) in [
            (None, "none"),
            (Some(limit(100, 0, 1000)), "100 IOPS, burst 1s"),
            (Some(limit(7, 52_428_800, 1500)), "7 IOPS, 50 MiB/s, burst 1500ms"),
        ] {
            assert_eq!(text(limit.as_ref()), want);
        }
    }

    #[test]
    fn rates_are_positive_or_none() {
        assert_eq!((iops("500"), iops("none")), (Ok(500), Ok(0)));
        assert_eq!((bandwidth("1M"), bandwidth("none")), (Ok(1 << 20), Ok(0)));
        for wrong in [iops("0"), iops("-1"), iops("many"), iops("5000000000")] {
            assert!(wrong.unwrap_err().contains("none"));
        }
        assert!(bandwidth("0").unwrap_err().contains("say none"));
        assert!(bandwidth("fast").unwrap_err().contains("size"));
        assert_eq!(burst("2s"), Ok(2000));
        assert!(burst("2000h").is_err() && burst("2").is_err());
        for text in ["1us", "1500us"] {
            assert!(burst(text).is_err_and(|e| e.contains("at least 1ms")), "{text}");
        }
    }
}
