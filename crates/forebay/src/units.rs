//! Sizes and times as people write and read them. Units of size are powers of 1024.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const UNITS: [(char, u32); 6] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

/// Reads a size: `16G`, `512M`, `1.5T`, `4096`; `GiB`, `GB` and lower case are accepted for `G`.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("{text:?} is not a size; a size is a number of bytes or like 512M, 16G, 1T");
    let trimmed = text.trim();
    let number_len =
        trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let shift = parse_unit(unit.trim()).ok_or_else(wrong)?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let bytes = scale(whole, fraction, shift).ok_or_else(wrong)?;
    u64::try_from(bytes).map_err(|_| format!("{text:?} is more bytes than can be counted"))
}

/// `whole.fraction << shift`; absent where that is no whole number of bytes.
fn scale(whole: &str, fraction: &str, shift: u32) -> Option<u128> {
    // More digits than any size has.
    if whole.is_empty()
        || whole.len() > 20
        || fraction.len() > 12
        || (shift == 0 && !fraction.is_empty())
    {
        return None;
    }
    let ten = 10u128.pow(fraction.len() as u32);
    let parts: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let number = (whole.parse::<u128>().ok()?) * ten + parts;
    Some(number.checked_mul(1 << shift)? / ten)
}

fn parse_unit(unit: &str) -> Option<u32> {
    let mut letters = unit.chars();
    let Some(first) = letters.next() else { return Some(0) };
    let rest = letters.as_str();
    let first = first.to_ascii_uppercase();
    if first == 'B' {
        return rest.is_empty().then_some(0);
    }
    let known = UNITS.iter().find(|u| u.0 == first)?;
    ["", "B", "b", "iB", "ib"].contains(&rest).then_some(known.1)
}

/// Reads a time: `5s`, `500ms`, `2m`, `0.5s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time; a time is like 500ms, 5s, 2m, 30d");
    let trimmed = text.trim();
    let number_len =
        trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(number_len);
    let unit_s = match unit.trim() {
        "us" => 0.000_001,
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * unit_s).map_err(|_| wrong())
}

/// A size as [`parse_size`] reads it: `64K`, `5000`.
pub fn exact_size(bytes: u64) -> String {
    let whole = |(_, shift): &&(char, u32)| bytes > 0 && bytes % (1 << shift) == 0;
    match UNITS.iter().rev().find(whole) {
        Some((unit, shift)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A time as [`parse_duration`] reads it: `200us`, `90s`, `1h`. A fraction of a microsecond is
/// left out.
pub fn exact_duration(time: Duration) -> String {
    const TIMES: [(&str, u128); 5] = [
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("m", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1000),
    ];
    let us = time.as_micros();
    match TIMES.iter().find(|(_, unit_us)| us > 0 && us % unit_us == 0) {
        Some((unit, unit_us)) => format!("{}{unit}", us / unit_us),
        None if us == 0 => "0s".to_owned(),
        None => format!("{us}us"),
    }
}

/// A size for people: `1.5 GiB`, `512 B`.
pub fn human_bytes(bytes: u64) -> String {
    let Some((unit, shift)) = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0) else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    let text = if value >= 99.95 { format!("{value:.0}") } else { format!("{value:.1}") };
    format!("{} {unit}iB", text.strip_suffix(".0").unwrap_or(&text))
}

/// A span of microseconds for people: `85 us`, `1.2 ms`, `3.4 s`.
pub fn human_us(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{us:.0} us"),
        us if us < 999_500.0 => format!("{:.1} ms", us / 1e3),
        us => format!("{:.1} s", us / 1e6),
    }
}

/// A span of seconds for people: `42 s`, `3 min`, `5 h 12 min`, `12 d 3 h`.
pub fn human_seconds(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{minutes} min"),
        7200..172_800 => format!("{hours} h {} min", minutes % 60),
        _ => format!("{days} d {} h", hours % 24),
    }
}

/// A time in seconds since 1970; 0: none is known.
pub fn unix_time(seconds: u64) -> String {
    match seconds {
        0 => "at a time that is not known".into(),
        seconds => utc(UNIX_EPOCH + Duration::from_secs(seconds)),
    }
}

/// A moment for people: `2026-11-21 06:45:06 UTC`.
pub fn utc(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is their last; 719,468 days lie between
    // 0000-03-01 and 1970-01-01. Source: Howard Hinnant, "chrono-Compatible Low-Level Date
    // Algorithms", civil_from_days.
    let z = days + 719_468;
    let (era, of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_texts_are_read_as_they_were() {
        for bytes in [0, 1, 1023, 1024, 4096, 5000, 3 << 20, (1 << 40) + 1024, u64::MAX] {
            assert_eq!(parse_size(&exact_size(bytes)), Ok(bytes));
        }
        assert_eq!((exact_size(1536 << 20), exact_size(2 << 30)), ("1536M".into(), "2G".into()));
        for (us, text) in [
            (0, "0s"),
            (200, "200us"),
            (1000, "1ms"),
            (1500, "1500us"),
            (90_000_000, "90s"),
            (120_000_000, "2m"),
            (3_600_000_000, "1h"),
        ] {
            let time = Duration::from_micros(us);
            assert_eq!((exact_duration(time), parse_duration(text)), (text.into(), Ok(time)));
        }
    }

    #[test]
    fn sizes_are_powers_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("512B", 512),
            ("16G", 16 << 30),
            ("512m", 512 << 20),
            ("1T", 1 << 40),
            ("1.5K", 1536),
            (" 2 GiB ", 2 << 30),
            ("8GB", 8 << 30),
            ("1P", 1 << 50),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "many",
            "G",
            "-1",
            "1.5",
            "1..5G",
            "1,5G",
            "16GG",
            "16 Gigs",
            "0x10",
            "99999999999999999999999",
            "16E1",
            "17E",
            // 2^128 in the middle of the calculation.
            "295147905.179352825856E",
        ] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("0.5 s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        for text in ["", "5", "s", "-1s", "5 parsecs", "999999999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_000_000_000, "2001-09-09 01:46:40 UTC"),
            (4_107_542_399, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn people_read_three_digits() {
        assert_eq!(human_bytes(0), "0 B");
        assert_eq!(human_bytes(1023), "1023 B");
        assert_eq!(human_bytes(16 << 30), "16 GiB");
        assert_eq!(human_bytes(3 << 29), "1.5 GiB");
        assert_eq!(human_bytes(200 << 20), "200 MiB");
        assert_eq!(human_us(85.4), "85 us");
        assert_eq!(human_us(1234.0), "1.2 ms");
        assert_eq!(human_seconds(42), "42 s");
        assert_eq!(human_seconds(18_720), "5 h 12 min");
    }
}
