//! Options, file and defaults together.

use std::time::Duration;

use emulate::Emulate;

use super::chosen::known;
use super::*;
use crate::host::devices::DeviceChoice;
use crate::host::logs::LogFormat;
use crate::host::world::IoChoice;

fn config(text: &str) -> Result<ServeConfig> {
    let file = ConfigFile::parse(text).map_err(|e| CommandError::Usage(e.to_string()))?;
    ServeConfig::new(Sections::default(), file, Path::new("home"))
}

const WHOLE: &str = r#"
    devices = ["a", { path = "/b", emulate = "hdd" }]
    [nbd]
    socket = "n.sock"
    socket_mode = "0660"
    socket_group = "kvm"
    listen = ["127.0.0.1:10809", "[::1]:10809"]
    tls = "require"
    max_connections = 7
    max_requests_per_connection = 9
    max_payload = "128M"
    [tls]
    certificates = "tls"
    psk = "keys.psk"
    verify_peer = false
    [control]
    socket = "c.sock"
    socket_mode = "0666"
    socket_group = "7"
    [http]
    listen = ["127.0.0.1:0", "unix:h.sock"]
    token_file = "h.token"
    socket_mode = "0640"
    socket_group = "8"
    hosts = ["box.lan"]
    [pool]
    commit_interval = "250ms"
    dirty_nodes = 100
    cached_nodes = 1000
    loaded_groups = 20
    device_depth = 32
    [cache]
    path = "c.img"
    size = "3G"
    policy = "lru"
    max_lag = "7s"
    dirty_target = 11
    dirty_limit = 22
    writeback_rate_min = "1M"
    writeback_rate_max = "50M"
    writeback_rate_idle = "5M"
    promote = "second"
    promote_max = "64K"
    sequential_cutoff = "1M"
    index_memory = "32M"
    dirty_nodes = 99
    journal_interval = "2s"
    gc_slice = "300us"
    gc_min_nodes = 3
    gc_pause = "4ms"
    [[access]]
    client = "vm?"
    volumes = ["a", "b*"]
    read_only = true
    [io]
    backend = "posix"
    [log]
    format = "json"
    level = "debug"
"#;

#[test]
fn a_group_that_is_not_there_is_a_misuse() {
    let groups = |text: &str| config(&format!("devices = [\"a\"]\n{text}")).unwrap().check_groups();
    assert_eq!(groups("[nbd]\nsocket_group = \"7\""), Ok(()));
    assert_eq!(groups("[http]\nsocket_group = \"no such group\""), Ok(()), "it has no socket");
    for (section, more) in [("nbd", ""), ("control", ""), ("http", "listen = \"unix:h.sock\"")] {
        let text = format!("[{section}]\nsocket_group = \"no such group\"\n{more}");
        let e = groups(&text).expect_err("there is no such group");
        assert_eq!(e.exit_status(), 2);
        let wanted = format!("{section}.socket_group: there is no group \"no such group\" here");
        assert!(e.to_string().starts_with(&wanted), "{e}");
    }
}

#[test]
fn every_key_is_heard() {
    let c = config(WHOLE).unwrap();
    assert_eq!(
        c.said.devices,
        [
            PathBuf::from("a").into(),
            DeviceChoice { path: "/b".into(), emulate: Some(Emulate::Hdd) }
        ]
    );
    assert_eq!(
        (c.said.nbd.socket.said().to_str(), c.said.control.socket.said().to_str()),
        (Some("n.sock"), Some("c.sock"))
    );
    assert_eq!(c.said.nbd.listen.len(), 2);
    let permits = |mode, group: &str| Permits { mode, group: Some(group.to_owned()) };
    assert_eq!(c.said.nbd.permits(), permits(0o660, "kvm"));
    assert_eq!(c.said.control.permits(), permits(0o666, "7"));
    assert_eq!(c.said.http.permits(), permits(0o640, "8"));
    assert!(c.said.requires_tls() && c.said.has_tls());
    let credentials = c.said.tls.credentials();
    assert_eq!(credentials.certificates.as_deref(), Some(Path::new("tls")));
    assert_eq!(credentials.keys.as_deref(), Some(Path::new("keys.psk")));
    assert!(!credentials.verify_peer);
    let volumes = vec!["a".to_owned(), "b*".to_owned()];
    assert_eq!(
        *c.said.access.said(),
        [export::Rule { client: "vm?".into(), volumes, read_only: true }]
    );
    let places = [HttpPlace::Tcp("127.0.0.1:0".parse().unwrap()), HttpPlace::Unix("h.sock".into())];
    assert_eq!(c.said.http.listen, places);
    assert_eq!(c.said.http.token_file.as_deref(), Some(Path::new("h.token")));
    assert_eq!(
        (c.said.http.hosts.clone(), c.said.http.optional),
        (vec!["box.lan".to_owned()], false)
    );
    let table::Settings { pool, cache: cached, limits } = c.settings.settings().clone();
    assert_eq!((limits.max_connections, limits.max_in_flight_requests), (7, 9));
    assert_eq!(limits.max_payload_bytes, 128 << 20);
    assert_eq!(pool.commit_interval, Duration::from_millis(250));
    assert_eq!((pool.dirty_nodes, pool.cached_nodes), (100, 1000));
    assert_eq!((pool.loaded_groups, pool.device.depth), (20, 32));
    assert_eq!(
        (c.said.cache.path.as_deref(), c.said.cache.size),
        (Some(Path::new("c.img")), Some(3 << 30))
    );
    assert_eq!((cached.policy, cached.max_lag), (cache::Policy::Lru, Duration::from_secs(7)));
    assert_eq!((cached.dirty_target_percent, cached.dirty_limit_percent), (11, 22));
    let rates = (cached.writeback.min, cached.writeback.max, cached.writeback.idle_rate);
    assert_eq!(rates, (1 << 20, 50 << 20, 5 << 20));
    assert_eq!((cached.promote, cached.promote_blocks), (cache::Promote::Second, 16));
    assert_eq!(
        (cached.sequential_cutoff, cached.resident_nodes, cached.dirty_nodes),
        (1 << 20, 8192, 99)
    );
    assert_eq!(cached.journal_interval, Duration::from_secs(2));
    assert_eq!(
        (cached.gc_slice, cached.gc_min_nodes, cached.gc_pause),
        (Duration::from_micros(300), 3, Duration::from_millis(4))
    );
    assert_eq!(*c.said.io.backend.said(), IoChoice::Posix);
    let log = c.said.log;
    assert_eq!((log.format, log.level.as_deref()), (Some(LogFormat::Json), Some("debug")));
}

#[test]
fn every_key_is_documented() {
    let text = include_str!("../../../docs/configuration.md");
    for line in WHOLE.lines().map(str::trim) {
        let key = line.split_once('=').map_or(line, |(key, _)| key.trim());
        assert!(
            text.contains(&format!("`{key}`")) || key.is_empty(),
            "{key} is not in docs/configuration.md"
        );
    }
}

#[test]
fn what_is_not_known_is_named() {
    for (text, word) in [
        ("devices = [\"a\"]\ncolour = 1", "colour"),
        ("devices = [\"a\"]\n[nbd]\nsoket = \"x\"", "soket"),
        (
            "devices = [\"a\"]\n[cache]\nsize = \"2G\"",
            "line 3: a size of a cache is given, and no path",
        ),
        ("devices = [\"a\"]\n[cache]\npath = \"a\"", "named twice"),
        ("devices = [\"a\"]\n[cache]\npath = \"c\"\ncolour = 1", "colour"),
        (
            "devices = [\"a\"]\n[cache]\npath = \"c\"\npolicy = \"s3fifo\"",
            "lru, fifo, random or adaptive",
        ),
        ("devices = [\"a\"]\n[cache]\npath = \"c\"\npromote = \"third\"", "never"),
        ("devices = [\"a\"]\n[cache]\npath = \"c\"\nmax_lag = \"1ms\"", "max_lag"),
        ("devices = [\"a\"]\n[cache]\npath = \"c\"\ndirty_limit = 30", "dirty_limit"),
        (
            "devices = [\"a\"]\n[cache]\npath = \"c\"\nwriteback_rate_min = \"2G\"",
            "writeback_rate_max",
        ),
        ("devices = [\"a\"]\n[cache]\npath = \"c\"\nindex_memory = 1", "index_memory"),
        ("devices = [\"a\"]\n[cache]\npath = \"c\"\npromote_max = 1", "promote_max"),
        ("devices = [\"a\"]\n[nbd]\nlisten = [\"nowhere\"]", "nowhere"),
        ("devices = [\"a\"]\n[nbd]\nlisten = [\"127.0.0.1:0\"]", "--tls off"),
        ("devices = [\"a\"]\n[nbd]\ntls = \"perhaps\"", "\"offer\""),
        ("devices = [\"a\"]\n[nbd]\nsocket_mode = \"0400\"", "0660"),
        ("devices = [\"a\"]\n[nbd]\nsocket_mode = 600", "\"0600\""),
        ("devices = [\"a\"]\n[control]\nsocket_mode = 432", "\"0660\""),
        ("devices = [\"a\"]\n[tls]\ncertificate = \"d\"", "certificate"),
        ("devices = [\"a\"]\naccess = [{ client = \"a\" }]", "volumes"),
        ("devices = [\"a\"]\naccess = [{ client = \"a\", volumes = [\"b\"] }]", "require"),
        ("devices = [\"a\"]\n[http]\nlisten = \"nowhere\"", "nowhere"),
        ("devices = [\"a\"]\n[http]\nlisten = [7]", "unix:PATH"),
        ("devices = [\"a\"]\n[http]\nlisten = [\"none\", \"unix:s\"]", "none"),
        ("devices = [\"a\"]\n[http]\nlisten = \"unix:home/nbd.sock\"", "share"),
        ("devices = [\"a\"]\n[http]\ntoken = \"x\"", "token"),
        ("devices = [\"a\"]\n[pool]\ncommit_interval = \"soon\"", "soon"),
        ("devices = [\"a\"]\n[pool]\ncommit_interval = \"0s\"", "commit_interval"),
        ("devices = [\"a\"]\n[pool]\ncached_nodes = 3", "cached_nodes"),
        ("devices = [\"a\"]\n[nbd]\nmax_payload = \"1M\"", "max_payload"),
        ("devices = [\"a\"]\n[io]\nbackend = \"dos\"", "dos"),
        ("devices = [\"a\"]\n[log]\nlevel = \"x=y=z\"", "x=y=z"),
        ("devices = [\"a\"]\n[log]\nlevel = \"verbose\"", "error, warn"),
        ("[nbd]", "devices"),
        ("devices = []", "no device"),
        (
            "devices = [{ path = \"a\", emulate = \"tape\" }]",
            "emulate is \"tape\"; it can be hdd or ssd",
        ),
        ("devices = [{ path = \"a\", emulat = \"hdd\" }]", "emulat"),
        ("devices = [{ emulate = \"hdd\" }]", "path"),
        ("devices = [{ path = \"a\", emulate = \"hdd\" }, \"a\"]", "named twice"),
        ("devices = [\"a\", \"a\"]", "named twice"),
        ("devices = [\"a\"]\n[nbd]\nsocket = \"s\"\n[control]\nsocket = \"s\"", "share"),
    ] {
        let e = config(text).unwrap_err();
        assert_eq!(e.exit_status(), 2);
        assert!(e.to_string().contains(word), "{text}: {e}");
    }
}

#[test]
fn options_come_before_the_file_and_the_file_before_defaults() {
    let mut options = Sections {
        devices: vec![PathBuf::from("d").into()],
        commit_interval: Some(Duration::from_secs(1)),
        ..Sections::default()
    };
    options.control.socket = Some("o.sock".into());
    options.cache.max_lag = Some(Duration::from_secs(9));
    options.cache.policy = Some(cache::Policy::Fifo);
    let c =
        ServeConfig::new(options, ConfigFile::parse(WHOLE).unwrap(), Path::new("home")).unwrap();
    assert_eq!(c.said.devices, [PathBuf::from("d").into()]);
    assert_eq!(
        (c.said.nbd.socket.said().to_str(), c.said.control.socket.said().to_str()),
        (Some("n.sock"), Some("o.sock"))
    );
    let settings = c.settings.settings();
    let pool = (settings.pool.commit_interval, settings.pool.dirty_nodes);
    assert_eq!(pool, (Duration::from_secs(1), 100));
    assert_eq!(settings.cache.max_lag, Duration::from_secs(9));
    assert_eq!((settings.cache.policy, c.said.cache.size), (cache::Policy::Fifo, Some(3 << 30)));
    let source = |name| c.settings.source(known(name));
    assert_eq!(
        [
            source("cache.max_lag"),
            source("cache.dirty_target"),
            source("cache.latency_target_read")
        ],
        [Source::Option, Source::File, Source::Default]
    );
    let c = config("devices = [\"a\"]\n[http]\nlisten = \"[::1]:80\"").unwrap();
    assert_eq!(c.said.http.listen.len(), 1);
    let c = config("devices = [\"a\"]").unwrap();
    assert_eq!(c.said.http.listen, []);
    assert_eq!(c.said.nbd.socket.said(), Path::new("home/nbd.sock"));
    assert_eq!(c.settings.settings().pool.commit_interval, Duration::from_secs(5));
}

#[test]
fn settings_of_older_versions_are_told_of_and_refuse_no_start() {
    let text = "devices = [\"a\"]\n[cache]\nmax_lag = \"9s\"\n\
                stream_writes = \"past\"\ncongested_read = \"1s\"\n";
    let file = ConfigFile::parse(text).unwrap();
    assert_eq!(file.sections.in_file.len(), 1);
    let mut needless = file.needless.clone();
    needless.sort();
    assert_eq!(needless.len(), 2);
    assert!(needless[0].starts_with("line 4: cache.stream_writes has no effect"), "{needless:?}");
    assert!(needless[1].starts_with("line 5: cache.congested_read"), "{needless:?}");
    assert!(
        ConfigFile::parse("devices = [\"a\"]\n[pool]\nstream_writes = \"past\"\n").is_err(),
        "another section"
    );
}

#[test]
fn paths_are_relative_to_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("forebay.toml");
    std::fs::write(&path, WHOLE).unwrap();
    let file = ConfigFile::read(&path).unwrap().sections;
    assert_eq!(file.devices[0], dir.path().join("a").into());
    assert_eq!(file.devices[1].path, Path::new("/b"));
    assert_eq!(file.nbd.socket, Some(dir.path().join("n.sock")));
    assert_eq!(file.tls.certificates, Some(dir.path().join("tls")));
    assert_eq!(file.tls.psk, Some(dir.path().join("keys.psk")));
    assert_eq!(file.cache.path, Some(dir.path().join("c.img")));
    assert_eq!(file.http.token_file, Some(dir.path().join("h.token")));
    assert_eq!(file.http.listen[1], HttpPlace::Unix(dir.path().join("h.sock")));
    let e = ConfigFile::read(&dir.path().join("none")).unwrap_err().to_string();
    assert!(e.contains("none"), "{e}");
}
