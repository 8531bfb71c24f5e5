//! What the command reads: configuration, sizes and times, the control socket, foreign devices.

use std::io::{Seek, Write};

/// The configuration file.
pub fn config(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        forebay::hostile::config(text);
    }
}

/// Seeds of [`config`].
pub fn configs() -> Vec<Vec<u8>> {
    let example = include_str!("../../../../contrib/forebay.toml");
    // Keys that are comments in the example, and a value of each.
    let all = example.lines().map(|line| line.strip_prefix('#').unwrap_or(line));
    let set: Vec<&str> = all.filter(|l| l.contains(" = ") || l.starts_with('[')).collect();
    let access = "[[access]]\nclient = \"vm*\"\nvolumes = [\"a?\", \"*\"]\nread_only = true\n";
    let devices = "devices = [\"a\", { path = \"/b\", emulate = \"hdd\" }]\n";
    let mut seeds = vec![example.to_owned(), set.join("\n"), format!("{devices}{access}")];
    // Each line alone, in its section.
    let mut section = "";
    for line in &set {
        match line.starts_with('[') {
            true => section = line,
            false => seeds.push(format!("{devices}{section}\n{line}\n")),
        }
    }
    seeds.into_iter().map(String::into_bytes).collect()
}

/// Sizes and times.
pub fn units(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        forebay::hostile::units(text);
    }
}

/// Seeds of [`units`].
pub fn some_units() -> Vec<Vec<u8>> {
    const TEXTS: [&str; 8] =
        ["512M", "1.5 TiB", "18446744073709551615", "0.25e", "500ms", "0.5s", "30d", "200us"];
    TEXTS.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// A line of the control protocol.
pub fn control(data: &[u8]) {
    forebay::hostile::control(data);
}

/// Seeds of [`control`].
pub fn lines() -> Vec<Vec<u8>> {
    const REQUESTS: [&str; 10] = [
        r#""status""#,
        r#""volume-create","name":"a","size_bytes":4096,"sector_bytes":512"#,
        r#""volume-limit","name":"a","iops":5,"bytes_per_second":7,"burst_ms":null"#,
        r#""cache-attach","path":"/a","size_bytes":1"#,
        r#""cache-mode","volume":"a","mode":"writearound""#,
        r#""scrub-start","device":"a","rate":1"#,
        r#""device-add","device":"/a,emulate=hdd","replaces":null,"force":true,"spare":false"#,
        r#""set","key":"max_lag","value":"7s","save":true"#,
        r#""pool-copies","copies":3"#,
        r#""moves-pause","paused":true"#,
    ];
    let mut lines: Vec<_> =
        REQUESTS.iter().map(|r| format!("{{\"version\":1,\"request\":{r}}}\n")).collect();
    lines.push("{\"version\":1,\"ok\":{\"a\":[1,2]}}\n".into());
    lines.push("{\"version\":1,\"error\":{\"kind\":\"busy\",\"message\":\"m\"}}\n".into());
    lines.into_iter().map(String::into_bytes).collect()
}

/// A device with somebody's data: how many times 512 bytes it is longer than the bytes (a byte),
/// and the bytes, which stand at its beginning and at its end.
pub fn emptiness(data: &[u8]) {
    let Some((&longer, bytes)) = data.split_first() else { return };
    let mut file = tempfile::tempfile().expect("a file without a name");
    let size = (bytes.len() * 2 + usize::from(longer) * 512) as u64;
    let parts = [0, size - bytes.len() as u64];
    for at in parts {
        file.seek(std::io::SeekFrom::Start(at)).expect("a file that can be longer");
        file.write_all(bytes).expect("room for some KiB");
    }
    forebay::hostile::emptiness(&file, size);
}

/// Seeds of [`emptiness`].
pub fn devices() -> Vec<Vec<u8>> {
    let at = |offset: usize, magic: &[u8]| {
        let mut bytes = vec![0; 1 + offset];
        bytes.extend_from_slice(magic);
        bytes.resize(bytes.len().next_multiple_of(512) + 1, 0);
        bytes
    };
    vec![
        at(0, b"XFSB"),
        at(512, b"EFI PART"),
        at(0x438, b"\x53\xef"),
        at(512, b"LABELONE................LVM2 001"),
        at(0x1000, b"\xfc\x4e\x2b\xa9"),
        at(16384, b"FOREBAY1"),
        at(510, b"\x55\xaa"),
    ]
}
