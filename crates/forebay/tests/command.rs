//! The binary as a person uses it: a pool in a directory of its own, served, asked, stopped.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use serde_json::Value;

const BIN: &str = env!("CARGO_BIN_EXE_forebay");
const TRIES: u32 = 1500;
const PAUSE: Duration = Duration::from_millis(20);

#[allow(clippy::disallowed_methods, reason = "a test of a process")]
fn pause() {
    std::thread::sleep(PAUSE);
}

fn forebay(words: &[&str]) -> Output {
    Command::new(BIN).args(words).stdin(Stdio::null()).output().unwrap()
}

fn fine(words: &[&str]) -> String {
    let done = forebay(words);
    assert!(done.status.success(), "{words:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Runs a check that must say that it was partial; returns what it found.
fn partial(words: &[&str]) -> String {
    let done = forebay(words);
    assert_eq!(done.status.code(), Some(5), "{words:?}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

/// Runs what must fail with this status; returns what it says.
fn refused(status: i32, words: &[&str]) -> String {
    let done = forebay(words);
    assert_eq!(done.status.code(), Some(status), "{words:?}: {done:?}");
    String::from_utf8(done.stderr).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// `forebay up` in a temporary directory; ended when it is dropped.
struct Up {
    dir: PathBuf,
    child: Child,
}

impl Up {
    fn start(dir: &Path, more: &[&str]) -> Up {
        let log = std::fs::File::create(dir.with_extension("err")).unwrap();
        Up::start_as(Command::new(BIN), log.into(), dir, more)
    }

    /// Starts it by a command of which the arguments are still to be said.
    fn start_as(mut command: Command, log: Stdio, dir: &Path, more: &[&str]) -> Up {
        let child = command
            .args(["up", text(dir), "--size", "256M", "--volume-size", "64M"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(dir.with_extension("out")).unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut up = Up { dir: dir.to_owned(), child };
        for _ in 0..TRIES {
            if up.greets() && up.log("out").contains("forebay status") {
                return up;
            }
            assert!(up.child.try_wait().unwrap().is_none(), "it ended: {}", up.log("err"));
            pause();
        }
        panic!("it does not answer: {}", up.log("err"));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.with_extension(name)).unwrap_or_default()
    }

    fn greets(&self) -> bool {
        let Ok(mut stream) = UnixStream::connect(self.path("nbd.sock")) else { return false };
        let mut magic = [0; 8];
        stream.read_exact(&mut magic).is_ok() && &magic == b"NBDMAGIC"
    }

    fn status(&self) -> Value {
        let socket = self.path("control.sock");
        serde_json::from_str(&fine(&["status", "--json", "--socket", text(&socket)])).unwrap()
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Ends it as a user does; it must end well.
    fn stop(self, signal: &str) {
        self.signal(signal);
        self.stopped();
    }

    /// It has been told to stop, and must end well.
    fn stopped(mut self) {
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "{}", self.log("err"));
        assert!(!self.path("nbd.sock").exists() && !self.path("control.sock").exists());
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn dir() -> (tempfile::TempDir, PathBuf) {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("data");
    (tmp, dir)
}

#[test]
fn up_serves_and_answers_until_it_is_told_to_stop() {
    let (_tmp, dir) = dir();
    let up = Up::start(&dir, &[]);
    let uri = format!("nbd+unix:///vol0?socket={}", up.path("nbd.sock").display());
    assert!(up.log("out").split_whitespace().any(|word| word == uri), "{}", up.log("out"));
    for name in ["nbd.sock", "control.sock"] {
        let meta = up.path(name).metadata().unwrap();
        assert!(meta.file_type().is_socket() && meta.permissions().mode() & 0o777 == 0o600);
    }
    let status = up.status();
    assert_eq!(status["pool"]["state"], "online");
    assert_eq!(status["pool"]["copies"], 2);
    assert_eq!(status["volumes"][0]["name"], "vol0");
    assert_eq!(status["volumes"][0]["size_bytes"], 64 << 20);
    assert!(["io_uring", "posix"].contains(&status["server"]["io_backend"].as_str().unwrap()));
    assert!(status["server"]["resident_bytes"].as_u64().unwrap() > 1 << 20);
    for kind in ["read", "write", "flush", "discard", "zero"] {
        assert_eq!(status["requests"][kind]["count"], 0, "{kind}");
    }
    assert!(status["commit"]["critical_section_us"]["p99"].is_number());
    assert!(status["io"]["commit"]["write"]["latency_us"]["p999"].is_number());
    let socket = up.path("control.sock");
    assert!(fine(&["status", "--socket", text(&socket)]).contains("vol0"));
    up.stop("TERM");
    let again = Up::start(&dir, &["--io", "posix"]);
    assert_eq!(again.status()["server"]["io_backend"], "posix");
    let told = again.log("err");
    assert!(told.contains("--size counts") && told.contains("forebay volume resize"), "{told}");
    again.stop("INT");
}

#[test]
fn it_ends_well_though_nobody_reads_the_log_any_more() {
    for signal in ["TERM", "INT"] {
        let (_tmp, dir) = dir();
        let mut up =
            Up::start_as(Command::new(BIN), Stdio::piped(), &dir, &["--log-level", "debug"]);
        drop(up.child.stderr.take());
        assert!(up.greets());
        up.stop(signal);
        // And its last words.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let words = ["volume", "list", "--socket", text(&dir)];
        assert_eq!(Command::new(BIN).args(words).stderr(writer).status().unwrap().code(), Some(1));
    }
}

#[test]
fn a_second_signal_ends_it_though_the_log_is_full() {
    let (_tmp, dir) = dir();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let mut up = Up::start_as(Command::new(BIN), writer.try_clone().unwrap().into(), &dir, &[]);
    // No line fits any more, and there is no reader.
    let fill = std::thread::Builder::new()
        .spawn(move || while writer.write_all(&[b'x'; 4096]).is_ok() {})
        .unwrap();
    (0..10).for_each(|_| pause());
    up.signal("TERM");
    (0..10).for_each(|_| pause());
    assert!(up.child.try_wait().unwrap().is_none());
    up.signal("TERM");
    let ended = (0..TRIES).any(|_| {
        pause();
        up.child.try_wait().unwrap().is_some()
    });
    assert!(ended);
    drop(reader);
    fill.join().unwrap();
}

#[test]
fn a_signal_while_it_starts_ends_it_before_it_serves() {
    for signal in ["TERM", "INT"] {
        let (_tmp, dir) = dir();
        // To make such a pool takes seconds on such disks.
        let child = Command::new(BIN)
            .args(["up", text(&dir), "--size", "15T", "--emulate", "hdd"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(dir.with_extension("err")).unwrap())
            .spawn()
            .unwrap();
        let up = Up { dir: dir.clone(), child };
        assert!((0..TRIES).any(|_| {
            pause();
            up.path("control.sock").exists()
        }));
        up.signal(signal);
        let log = dir.with_extension("err");
        up.stopped();
        let log = std::fs::read_to_string(log).unwrap();
        assert!(
            log.contains("before anything was served") && !log.contains("INFO serving"),
            "{log}"
        );
        // On a busy machine the signal may come when the pool is whole already; no half is left.
        let there = |name: &str| dir.join(name).exists();
        assert!(!there("pool0.img.new") && !there("pool1.img.new"), "{log}");
        assert_eq!(there("pool0.img"), there("pool1.img"), "{log}");
        assert!(there("pool0.img") || !there("cache.img"), "{log}");
        Up::start(&dir, &[]).stop(signal);
    }
}

#[test]
fn an_end_that_takes_long_says_what_it_waits_for() {
    let (_tmp, dir) = dir();
    let up = Up::start(&dir, &[]);
    let mut client = UnixStream::connect(up.path("nbd.sock")).unwrap();
    // The greeting; flags and EXPORT_NAME; size and flags. Then a WRITE of which the data never
    // comes.
    let say = |client: &mut UnixStream, parts: &[&[u8]]| client.write_all(&parts.concat()).unwrap();
    client.read_exact(&mut [0; 18]).unwrap();
    say(
        &mut client,
        &[&3u32.to_be_bytes(), b"IHAVEOPT", &1u32.to_be_bytes(), &4u32.to_be_bytes(), b"vol0"],
    );
    client.read_exact(&mut [0; 10]).unwrap();
    say(
        &mut client,
        &[
            &0x2560_9513u32.to_be_bytes(),
            &1u32.to_be_bytes(),
            &[0; 16],
            &(1u32 << 20).to_be_bytes(),
        ],
    );
    while up.status()["server"]["requests_in_flight"] != 1 {
        pause();
    }
    up.signal("TERM");
    let said = "still stopping, waiting for requests of clients that are under way; another \
                signal ends it at once";
    assert!((0..TRIES).any(|_| {
        pause();
        up.log("err").contains(said)
    }));
    // It waits for ten seconds.
    up.stopped();
}

#[test]
fn as_many_files_as_are_allowed_can_be_open() {
    let limited = |soft: u32, hard: u32| {
        let mut command = Command::new("sh");
        command.args([
            "-c",
            &format!("ulimit -Sn {soft}; ulimit -Hn {hard}; exec \"$0\" \"$@\""),
            BIN,
        ]);
        command
    };
    for (hard, warned) in [(200, true), (704, false)] {
        let (_tmp, dir) = dir();
        let log = std::fs::File::create(dir.with_extension("err")).unwrap();
        let up = Up::start_as(limited(100, hard), log.into(), &dir, &[]);
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", up.child.id())).unwrap();
        let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(files.split_whitespace().nth(3), Some(hard.to_string().as_str()), "{files}");
        let log = up.log("err");
        assert_eq!(
            log.contains("at most 200 files can be open, and 256 connections need 704"),
            warned,
            "{log}"
        );
        up.stop("TERM");
    }
}

#[test]
fn volumes_come_change_and_go() {
    let (_tmp, dir) = dir();
    let up = Up::start(&dir, &[]);
    let socket = up.path("control.sock");
    let with = |words: &[&'static str]| [words, &["--socket", text(&socket)]].concat();
    let made = fine(&with(&["volume", "create", "a", "--size", "1T", "--sector", "4096"]));
    let (made, sum) = made.split_once('\n').unwrap();
    assert_eq!(made, "a is made: a volume of 1 TiB");
    assert!(sum.contains("1 TiB together, and the pool holds"), "{sum}");
    assert!(refused(1, &with(&["volume", "create", "a", "--size", "1G"])).contains("already"));
    let said = refused(1, &with(&["volume", "resize", "a", "--size", "3G"]));
    assert!(said.contains("the last 1021 GiB of it") && said.contains("--shrink"), "{said}");
    let shrink = ["volume", "resize", "a", "--size", "3G", "--shrink"];
    assert!(fine(&with(&shrink)).starts_with("a has 3 GiB now\n"));
    for (state, word) in [("on", "cannot change it"), ("off", "may change it")] {
        let said = fine(&with(&["volume", "read-only", "a", state]));
        assert!(said.starts_with("a: clients") && said.contains(word), "{said}");
    }
    refused(1, &with(&["volume", "resize", "b", "--size", "3G"]));
    refused(2, &with(&["volume", "create", "b/c", "--size", "1G"]));
    refused(2, &with(&["volume", "limit", "a", "--bandwidth", "1K"]));
    let list: Value = serde_json::from_str(&fine(&with(&["volume", "list", "--json"]))).unwrap();
    assert_eq!(list.as_array().unwrap().len(), 2);
    assert_eq!((&list[1]["name"], &list[1]["size_bytes"]), (&"a".into(), &(3u64 << 30).into()));
    assert_eq!(list[1]["sector_bytes"], 4096);
    assert!(fine(&with(&["volume", "list"])).contains("3 GiB"));
    assert!(refused(2, &with(&["volume", "delete", "a"])).contains("--yes"));
    assert!(fine(&with(&["volume", "delete", "a", "--yes"])).starts_with("a is deleted; "));
    assert!(refused(1, &with(&["volume", "delete", "a", "--yes"])).contains("no volume"));
    let nobody = refused(1, &["volume", "list", "--socket", text(&up.path("none.sock"))]);
    assert!(nobody.contains("no server answers") && nobody.contains("forebay up"), "{nobody}");
    up.stop("TERM");
}

#[test]
fn a_cache_comes_and_goes() {
    let (tmp, dir) = dir();
    let up = Up::start(&dir, &["--cache-size", "64M"]);
    assert!(up.log("out").contains("cache.img, 64 MiB"), "{}", up.log("out"));
    let (socket, other) = (up.path("control.sock"), tmp.path().join("other.img"));
    let with = |words: &[&str]| -> Vec<String> {
        [words, &["--socket", text(&socket)]].concat().iter().map(|w| (*w).to_owned()).collect()
    };
    let fine = |words: &[&str]| fine(&with(words).iter().map(String::as_str).collect::<Vec<_>>());
    let misused =
        |words: &[&str]| refused(2, &with(words).iter().map(String::as_str).collect::<Vec<_>>());
    let refused =
        |words: &[&str]| refused(1, &with(words).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(refused(&["cache", "attach", text(&other), "--size", "32M"]).contains("already"));
    let said = fine(&["cache", "mode", "vol0", "writearound"]);
    assert_eq!(said, "vol0 uses the cache as writearound from now on\n");
    assert!(fine(&["cache", "status"]).contains("writearound: vol0"));
    fine(&["cache", "flush"]);
    assert!(fine(&["cache", "detach"]).contains("cache.img is of no use"));
    for what in ["status", "flush", "detach"] {
        assert!(refused(&["cache", what]).contains("no cache"), "{what}");
    }
    assert!(misused(&["cache", "attach", text(&other)]).contains("--size"));
    assert!(
        refused(&["cache", "attach", text(&other), "--size", "100K"]).contains("11 MiB at least")
            && !other.exists()
    );
    assert!(!up.path("cache.img").exists(), "it was the server's own");
    let old = tmp.path().join("old.img");
    fine(&["cache", "attach", text(&old), "--size", "32M"]);
    fine(&["cache", "detach"]);
    fine(&["cache", "attach", text(&other), "--size", "32M"]);
    // The one before was let go of.
    let free = std::fs::File::open(&old).unwrap();
    assert!(free.try_lock().is_ok());
    drop(free);
    let status: Value = serde_json::from_str(&fine(&["cache", "status", "--json"])).unwrap();
    assert_eq!((&status["path"], &status["state"]), (&text(&other).into(), &"serving".into()));
    up.stop("TERM");
    let log = self::refused(1, &["up", text(&dir), "--cache", text(&old)]);
    let named = format!("start with --cache {}", text(&other));
    assert!(log.contains("is not named") && log.contains(&named), "{log}");
    // The next start finds it by itself.
    Up::start(&dir, &[]).stop("TERM");
    let up = Up::start(&dir, &["--cache-size", "0"]);
    assert!(
        up.log("out").contains("written back") && other.exists() && up.status()["cache"].is_null()
    );
    up.stop("TERM");
}

#[test]
fn devices_in_use_are_left_alone() {
    let (tmp, dir) = dir();
    let up = Up::start(&dir, &[]);
    let (first, second) = (up.path("pool0.img"), up.path("pool1.img"));
    let devices = ["--device", text(&first), "--device", text(&second)];
    let (n, c) = (tmp.path().join("n.sock"), tmp.path().join("c.sock"));
    for words in [
        &["up", text(&dir)][..],
        &["check", text(&dir)],
        &[&["serve", "--nbd-socket", text(&n), "--socket", text(&c)], &devices[..]].concat(),
        &[&["create", "--force"], &devices[..]].concat(),
        &[&["check"], &devices[..]].concat(),
        &["dump", "superblock", "--dir", text(&dir)],
    ] {
        assert!(refused(1, words).contains("in use by another process"), "{words:?}");
    }
    assert!(up.greets() && !n.exists() && !c.exists());
    up.stop("TERM");
}

#[test]
fn a_killed_server_leaves_nothing_that_hinders_the_next() {
    let (_tmp, dir) = dir();
    let mut up = Up::start(&dir, &[]);
    up.child.kill().unwrap();
    up.child.wait().unwrap();
    assert!(up.path("nbd.sock").exists());
    Up::start(&dir, &[]).stop("TERM");
}

#[test]
fn a_lost_device_degrades_the_pool_and_is_not_made_anew() {
    for lost in ["pool0.img", "pool1.img"] {
        let (_tmp, dir) = dir();
        Up::start(&dir, &[]).stop("TERM");
        std::fs::remove_file(dir.join(lost)).unwrap();
        let up = Up::start(&dir, &[]);
        let status = up.status();
        assert_eq!(status["pool"]["state"], "degraded");
        assert_eq!(status["volumes"][0]["name"], "vol0");
        let (log, out) = (up.log("err"), up.log("out"));
        assert!(log.contains(lost) && log.contains("degraded"), "{log}");
        assert!(out.contains("degraded") && out.contains("WARNING"), "{out}");
        assert!(!up.path(lost).exists());
        up.stop("TERM");
        assert!(!dir.join(lost).exists());
        let report = partial(&["check", "--data", text(&dir)]);
        assert!(report.contains("degraded") && report.contains("NOT ALL"), "{report}");
    }
}

#[test]
fn a_cache_is_checked_and_dumped_with_its_pool() {
    let (tmp, dir) = dir();
    let up = Up::start(&dir, &[]);
    let in_use = refused(1, &["dump", "cache", "index", "--dir", text(&dir)]);
    assert!(in_use.contains("in use by another process"), "{in_use}");
    up.stop("TERM");
    let (first, second, cache) =
        (dir.join("pool0.img"), dir.join("pool1.img"), dir.join("cache.img"));
    let report = fine(&["check", "--data", text(&dir)]);
    assert!(report.contains("cache.img: ") && report.ends_with("clean\n"), "{report}");
    let devices = ["check", "--json", "--device", text(&first), text(&second)];
    let json = |report: String| serde_json::from_str::<Value>(&report).unwrap();
    let with = json(fine(&[&devices[..], &["--cache", text(&cache)]].concat()));
    assert_eq!(
        (&with["cache_report"]["standing"], &with["cache_report"]["errors"]),
        (&"attached".into(), &0.into())
    );
    assert_eq!(with["cache"], with["cache_report"]["uuid"]);
    assert_eq!(with["not_checked"], serde_json::json!([]));
    let without = json(partial(&devices));
    assert!(without["cache_report"].is_null());
    assert_eq!(without["not_checked"].as_array().map(Vec::len), Some(1));
    let without = partial(&["check", "--device", text(&first), text(&second)]);
    let says = ["was not checked", "what was is clean", "name the cache"];
    assert!(says.iter().all(|words| without.contains(words)), "{without}");
    for what in ["superblock", "buckets", "index", "journal"] {
        let dumped = fine(&["dump", "cache", what, "--dir", text(&dir)]);
        assert!(
            dumped
                .lines()
                .all(|line| serde_json::from_str::<Value>(line).unwrap()["kind"].is_string()),
            "{dumped}"
        );
    }
    assert_eq!(fine(&["dump", "cache", "superblock", "--cache", text(&cache)]).lines().count(), 4);
    refused(2, &["dump", "cache", "everything", "--cache", text(&cache)]);
    refused(1, &["dump", "cache", "index", "--dir", text(tmp.path())]);
    // One that is somebody else's: named, it is refused; by its usual name only, it is not the one.
    let other = tmp.path().join("other");
    Up::start(&other, &[]).stop("TERM");
    let foreign = forebay(&["check", text(&dir), "--cache", text(&other.join("cache.img"))]);
    assert_eq!(foreign.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&foreign.stdout).contains("another pool"));
    std::fs::copy(other.join("cache.img"), &cache).unwrap();
    assert!(partial(&["check", text(&dir)]).contains("was not checked"));
    std::fs::write(&cache, vec![1; 1 << 20]).unwrap();
    let other = forebay(&["check", text(&dir)]);
    assert_eq!(other.status.code(), Some(5));
    assert!(String::from_utf8_lossy(&other.stdout).contains("it holds no cache of Forebay"));
}

#[test]
fn create_asks_before_it_overwrites() {
    let (tmp, _) = dir();
    let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
    let devices = ["--device", text(&a), "--device", text(&b)];
    let create = |more: &[&'static str]| [&["create"], &devices[..], more].concat();
    assert!(refused(1, &create(&[])).contains("--size"));
    refused(2, &create(&["--size", "256M", "--name", ""]));
    assert!(!a.exists() && !b.exists());
    refused(1, &create(&["--size", "1M"]));
    assert!(!a.exists() && !b.exists(), "what a failed creation has made goes again");
    refused(2, &create(&["--size", "256M", "--copies", "3"]));
    let made: Value =
        serde_json::from_str(&fine(&create(&["--size", "256M", "--name", "p", "--json"]))).unwrap();
    assert_eq!((&made["name"], &made["copies"]), (&"p".into(), &2.into()));
    let again = refused(1, &create(&[]));
    assert!(again.contains("holds a Forebay pool") && again.contains("--force"), "{again}");
    fine(&["check", "--device", text(&a), "--device", text(&b)]);
    fine(&create(&["--force"]));
    let dumped = fine(&["dump", "superblock", "--device", text(&a), text(&b)]);
    let lines: Vec<Value> =
        dumped.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() >= 2 && lines.iter().any(|l| l["superblock"].is_object()), "{dumped}");
    refused(2, &["dump", "everything", "--device", text(&a)]);
    refused(1, &["check", text(&tmp.path().join("nowhere"))]);
}

#[test]
fn a_creation_that_cannot_be_leaves_what_was_there() {
    let (tmp, _) = dir();
    let (a, b) = (tmp.path().join("a"), tmp.path().join("b"));
    let mut image = vec![7u8; 8192];
    image[..4].copy_from_slice(b"QFI\xfb");
    let file = |path: &Path, len: u64| {
        std::fs::write(path, &image).unwrap();
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
    };
    file(&a, 256 << 20);
    file(&b, 1 << 20);
    let both = ["create", "--force", "--device", text(&a), "--device", text(&b)];
    assert!(refused(1, &both).contains("too small"));
    let name = ["create", "--force", "--name", "a/b", "--device", text(&a)];
    assert!(refused(2, &name).contains("name"));
    let cache = ["create", "--force", "--device", text(&a), "--cache", text(&b)];
    assert!(refused(1, &cache).contains("11 MiB at least"));
    let new = tmp.path().join("new");
    let cache =
        ["create", "--force", "--device", text(&a), "--cache", text(&new), "--cache-size", "1M"];
    assert!(refused(1, &cache).contains("11 MiB at least") && !new.exists());
    for path in [&a, &b] {
        let mut head = vec![0; image.len()];
        std::fs::File::open(path).unwrap().read_exact(&mut head).unwrap();
        assert!(head == image, "{} was changed", path.display());
    }
    fine(&["create", "--force", "--device", text(&a)]);
}

#[test]
fn a_cache_that_cannot_be_is_refused_before_a_pool_is_made() {
    let (tmp, dir) = dir();
    let (small, foreign) = (tmp.path().join("small"), tmp.path().join("foreign"));
    std::fs::write(&small, vec![0; 1 << 20]).unwrap();
    std::fs::write(&foreign, b"QFI\xfb").unwrap();
    let up = ["up", text(&dir), "--size", "256M", "--cache-size", "1M"];
    assert!(refused(1, &up).contains("11 MiB at least"));
    assert!(
        refused(1, &[&up[..], &["--cache", text(&small)]].concat()).contains("11 MiB at least")
    );
    assert!(
        refused(1, &[&up[..], &["--cache", text(&foreign)]].concat())
            .contains("not zeros at byte 0")
    );
    assert!(!dir.exists(), "something was made");
    Up::start(&dir, &["--cache-size", "64M"]).stop("TERM");
}

#[test]
fn a_configuration_file_says_it_all() {
    let (tmp, _) = dir();
    let file = tmp.path().join("forebay.toml");
    std::fs::write(&file, "devices = [\"a\"]\n[nbd]\nsocket = \"n.sock\"\ncolour = 3\n").unwrap();
    let text_of = refused(2, &["serve", "--config", text(&file)]);
    assert!(text_of.contains("colour") && text_of.contains("forebay.toml"), "{text_of}");
    assert!(!tmp.path().join("n.sock").exists());
}
