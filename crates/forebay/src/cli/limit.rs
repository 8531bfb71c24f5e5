//! `forebay volume limit`: how much clients may ask of a volume.

use clap::Args;
use serde_json::Value;

use crate::cli::options::ClientOptions;
use crate::control::Request;
use crate::error::Result;
use crate::output::{print, print_json};
use crate::units::{exact_duration, human_bytes, parse_duration, parse_size};

/// Limit what clients may ask of a volume, at once; kept until it is said anew
///
/// Reads and writes wait where they would exceed the limit. A rate that is not given stays as it
/// is; `none` removes it. Every request counts but FLUSH; bytes are those that are read and
/// written. Without an option: shows the limit.
#[derive(Args, Debug)]
pub struct Limit {
    /// The volume
    name: String,
    /// Requests a second, or none
    #[arg(long, value_name = "N", value_parser = iops)]
    iops: Option<u32>,
    /// Bytes a second, such as 50M, or none
    #[arg(long, value_name = "SIZE", value_parser = bandwidth)]
    bandwidth: Option<u64>,
    /// What a volume saves up while it is idle: that much time of each rate [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = burst)]
    burst: Option<u32>,
    /// Remove all limits of the volume
    #[arg(long, conflicts_with_all = ["iops", "bandwidth", "burst"])]
    none: bool,
    /// Print the limit as JSON
    #[arg(long)]
    json: bool,
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
        let Limit { name, iops, bandwidth, burst, none, json, client } = self;
        let removed = none.then_some(0);
        let request = Request::VolumeLimit {
            name,
            iops: iops.or(removed),
            bytes_per_second: bandwidth.or(removed.map(u64::from)),
            burst_ms: burst,
        };
        let answer = client.ask(&request)?;
        if json {
            return print_json(&answer["limit"]);
        }
        let (limit, before) = (text(&answer["limit"]), text(&answer["before"]));
        let was = if limit == before { String::new() } else { format!(" (it was: {before})") };
        print(&format!("{limit}{was}\n"))
    }
}

/// A limit for people.
pub fn text(limit: &Value) -> String {
    let iops = limit["iops"].as_u64().map(|n| format!("{n} IOPS"));
    let bytes = limit["bytes_per_second"].as_u64().map(|n| format!("{}/s", human_bytes(n)));
    let rates: Vec<String> = iops.into_iter().chain(bytes).collect();
    if rates.is_empty() {
        return "none".to_owned();
    }
    let burst_ms = limit["burst_ms"].as_u64().unwrap_or(0);
    let burst = exact_duration(std::time::Duration::from_millis(burst_ms));
    format!("{}, burst {burst}", rates.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn people_read_it() {
        for (limit, want) in [
            (Value::Null, "none"),
            (
                json!({ "iops": 100, "bytes_per_second": null, "burst_ms": 1000 }),
                "100 IOPS, burst 1s",
            ),
            (
                json!({ "iops": 7, "bytes_per_second": 52_428_800, "burst_ms": 1500 }),
                "7 IOPS, 50 MiB/s, burst 1500ms",
            ),
        ] {
            assert_eq!(text(&limit), want);
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
