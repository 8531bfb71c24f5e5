//! Limits of volumes: what a change makes of the one that is there.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::RangeInclusive;
use std::time::Duration;

use model::volume::{VolumeLimit, VolumeLimitChange};
use model::{Failure, FailureKind, request};
use volume::Volumes;

use crate::units::{exact_duration, exact_size};

/// The range of a limit of requests a second.
const IOPS: RangeInclusive<u32> = 1..=10_000_000;
/// The range of a limit of bytes a second.
const BYTES: RangeInclusive<u64> = 4096..=1 << 40;
/// The range of a burst in milliseconds.
const BURST_MS: RangeInclusive<u32> = 1..=3_600_000;
/// The burst in milliseconds where a request says none.
const DEFAULT_BURST_MS: u32 = 1000;

/// The limit that a request makes of `old`: what is absent stays as it is.
fn changed(
    request: &request::VolumeLimit,
    old: Option<VolumeLimit>,
) -> Result<Option<VolumeLimit>, String> {
    let out_of = |what: &str, is: String, least: String, most: String| {
        Err(format!("{what} is {is}; it can be {least} to {most}, or none"))
    };
    if let Some(n) = request.iops.filter(|n| *n > 0 && !IOPS.contains(n)) {
        let [is, least, most] = [n, *IOPS.start(), *IOPS.end()].map(|n| n.to_string());
        return out_of("the limit of requests a second", is, least, most);
    }
    if let Some(n) = request.bytes_per_second.filter(|n| *n > 0 && !BYTES.contains(n)) {
        let [is, least, most] = [n, *BYTES.start(), *BYTES.end()].map(exact_size);
        return out_of("the limit of bytes a second", is, least, most);
    }
    if let Some(ms) = request.burst_ms.filter(|ms| !BURST_MS.contains(ms)) {
        let [is, least, most] = [ms, *BURST_MS.start(), *BURST_MS.end()]
            .map(|ms| exact_duration(Duration::from_millis(ms.into())));
        return Err(format!("the burst is {is}; it can be {least} to {most}"));
    }
    let (iops, bytes) = (old.and_then(|l| l.iops), old.and_then(|l| l.bytes_per_second));
    let iops = request.iops.map_or(iops, NonZeroU32::new);
    let bytes_per_second = request.bytes_per_second.map_or(bytes, NonZeroU64::new);
    if iops.is_none() && bytes_per_second.is_none() {
        return match request.burst_ms {
            None => Ok(None),
            Some(_) => Err("there is no limit that could have a burst: give one, with \
                            --iops or --bandwidth"
                .to_owned()),
        };
    }
    let burst_ms = request.burst_ms.or(old.map(|l| l.burst_ms.get())).unwrap_or(DEFAULT_BURST_MS);
    let burst_ms = NonZeroU32::new(burst_ms).unwrap_or(NonZeroU32::MIN);
    Ok(Some(VolumeLimit { iops, bytes_per_second, burst_ms }))
}
/// Changes the limit of a volume, at once; or shows it, where nothing is to change.
pub async fn change(
    volumes: &Volumes,
    request: request::VolumeLimit,
) -> Result<VolumeLimitChange, Failure> {
    let name = &request.name;
    let info = volumes.pool().find_volume(name).ok_or_else(|| {
        let text = format!("there is no volume {name:?}; see forebay volume list");
        Failure::new(FailureKind::NotFound, text)
    })?;
    let before = info.limit;
    let request::VolumeLimit { iops, bytes_per_second, burst_ms, .. } = request;
    let mut limit = before;
    if iops.is_some() || bytes_per_second.is_some() || burst_ms.is_some() {
        limit = changed(&request, before)
            .map_err(|e| Failure::invalid(format!("volume {name}: {e}; nothing changed")))?;
        volumes.set_limit(name, limit).await?;
        tracing::info!(volume = name, ?limit, "limit of a volume changed");
    }
    Ok(VolumeLimitChange { name: request.name, limit, before })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(
        iops: Option<u32>,
        bytes: Option<u64>,
        burst_ms: Option<u32>,
    ) -> request::VolumeLimit {
        request::VolumeLimit { name: "a".into(), iops, bytes_per_second: bytes, burst_ms }
    }

    fn limit(iops: u32, bytes: u64, burst_ms: u32) -> Option<VolumeLimit> {
        Some(VolumeLimit {
            iops: NonZeroU32::new(iops),
            bytes_per_second: NonZeroU64::new(bytes),
            burst_ms: NonZeroU32::new(burst_ms)?,
        })
    }

    #[test]
    fn what_is_not_said_stays() {
        let set = |old, iops, bytes, burst| changed(&change(iops, bytes, burst), old);
        assert_eq!(set(None, Some(100), None, None), Ok(limit(100, 0, 1000)));
        assert_eq!(set(limit(100, 0, 9), None, Some(1 << 20), None), Ok(limit(100, 1 << 20, 9)));
        assert_eq!(set(limit(100, 4096, 9), Some(0), None, Some(7)), Ok(limit(0, 4096, 7)));
        assert_eq!(set(limit(100, 0, 9), Some(0), None, None), Ok(None));
        assert_eq!(set(limit(100, 4096, 9), Some(0), Some(0), None), Ok(None));
        assert_eq!(set(None, Some(0), Some(0), None), Ok(None));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_a_reason() {
        for (change, words) in [
            (change(Some(20_000_000), None, None), "20000000; it can be 1 to 10000000"),
            (change(None, Some(4095), None), "4095; it can be 4K to 1T"),
            (change(Some(1), None, Some(0)), "0s; it can be 1ms to 1h"),
            (change(Some(1), None, Some(3_600_001)), "1ms to 1h"),
            (change(None, None, Some(5)), "--iops or --bandwidth"),
            (change(Some(0), Some(0), Some(5)), "--iops or --bandwidth"),
        ] {
            let e = changed(&change, None).unwrap_err();
            assert!(e.contains(words), "{e}");
        }
    }
}
