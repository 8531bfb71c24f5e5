"""The command: what it prints, what it refuses, how it ends."""

import contextlib
import json
import os
import pty
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time

from harness.case import limit, pool_only
from harness.data import GIB, MIB, noise


# A process whose terminal this is, and which it hears of when that is closed.
ON_A_TERMINAL = """
import os, sys
terminal = os.open(sys.argv[1], os.O_RDWR)
for number in range(3):
    os.dup2(terminal, number)
os.execv(sys.argv[2], sys.argv[2:])
"""


def device_words(devices):
    return [word for device in devices for word in ("--device", device)]


@pool_only
def test_help(t):
    """Every command explains itself."""
    text = t.forebay("--help").stdout
    for command in ("up", "create", "serve", "volume", "cache", "set", "status", "check", "dump"):
        assert command in text, f"--help does not name {command}"
        assert "Usage" in t.forebay(command, "--help").stdout
    for command in ("create", "list", "resize", "delete"):
        assert "Usage" in t.forebay("volume", command, "--help").stdout
    for command in ("attach", "detach", "status", "mode", "flush"):
        assert "Usage" in t.forebay("cache", command, "--help").stdout
    assert "forebay" in t.forebay("--version").stdout
    t.refused(t.bin, "nonsense")
    t.refused(t.bin, "up", t.dir / "x", "--size", "many")
    assert not (t.dir / "x").exists(), "arguments must be validated before anything is made"


def test_up_says_how_to_use_it(t):
    server = t.up()
    log = server.says(server.uri())
    t.run(
        "nbdinfo",
        "--size",
        next(word for word in log.split() if word.startswith("nbd+unix:///vol0")),
    )
    server.restart()
    server.says(server.uri())


def test_double_start(t):
    """The same devices cannot be served twice, nor checked or created over while they are
    served."""
    server = t.up(size="1G", volume_size="64M")
    handle = server.connect()
    handle.pwrite(noise("lock", MIB), 0)
    t.refused(*server.command, saying=("lock", "in use", "already"))
    other = [
        t.bin, "serve", *device_words(server.devices), "--nbd-socket", t.dir / "other.sock",
        "--socket", t.dir / "control.sock",
    ]
    t.refused(*other, saying=("lock", "in use", "already"))
    t.refused(
        t.bin,
        "create",
        *device_words(server.devices),
        "--force",
        saying=("lock", "in use", "already"),
    )
    t.refused(t.bin, "check", *device_words(server.devices), saying=("lock", "in use", "already"))
    assert server.alive() and handle.pread(MIB, 0) == noise("lock", MIB)
    assert server.connect().pread(MIB, 0) == noise("lock", MIB), (
        "its socket must not have been taken away"
    )
    server.kill()
    server.start()


def test_clean_stop(t):
    """SIGTERM and SIGINT: exit status 0, nothing lost, sockets gone, and an idle client does not
    hold it up."""
    server = t.up(size="1G", volume_size="64M")
    for turn, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        handle = server.connect()
        handle.pwrite(noise(turn, MIB), turn * MIB)
        server.stop(number)
        assert not server.socket.exists(), "the socket must be removed"
        server.check()
        server.start()
        assert server.connect().pread(MIB, turn * MIB) == noise(turn, MIB), (
            "a clean stop must commit what was written"
        )


@pool_only
def test_a_start_that_fails_leaves_nothing(t):
    """A configuration that makes no sense is a misuse, found before anything is made; what fails
    later takes back what was made."""
    taken = socket.create_server(("127.0.0.1", 0))
    in_use = "%s:%d" % taken.getsockname()
    readable = t.dir / "token"
    readable.write_text("x" * 40)
    readable.chmod(0o644)
    (t.dir / "file").touch()
    http = ("--http-listen", f"unix:{t.dir}/h.sock")
    for status, words, saying in (
        (2, ("--http-listen", "192.0.2.1:80"), "http.listen: 192.0.2.1:80"),
        (2, ("--nbd-listen", "192.0.2.1:80", "--tls", "off"), "nbd.listen: 192.0.2.1:80"),
        (2, (*http, "--http-token-file", t.dir / "none"), "none: No such file"),
        (2, (*http, "--http-token-file", readable), "chmod 600"),
        (1, ("--http-listen", in_use), "in use"),
        (1, ("--nbd-listen", in_use, "--tls", "off"), "in use"),
        (1, ("--nbd-socket", t.dir / "file"), "not a socket"),
        (1, ("--socket", t.dir / "file" / "s"), "making"),
    ):
        said = t.forebay("up", t.dir / "new", "--size", "1G", *words, ok=(status,)).stderr
        assert saying in said, said
        left = [path.name for path in (t.dir / "new").glob("*")]
        assert not [name for name in left if name.endswith((".img", ".new"))], (words, left)
        assert status == 1 or not (t.dir / "new").exists(), (words, left)
    taken.close()


@pool_only
def test_a_closed_terminal(t):
    """SIGHUP ends a server without a configuration file as SIGTERM does, also where its terminal is
    gone and the signal comes twice; under nohup it changes nothing."""
    server = t.up(size="1G", volume_size="64M")
    server.connect().pwrite(noise("hangup", MIB), 0)
    server.stop(signal.SIGHUP)
    assert "stopping on SIGHUP" in server.log_text() and not server.socket.exists()
    server.check()
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", ON_A_TERMINAL, os.ttyname(theirs), *server.command]
    process = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    t.later(lambda: process.poll() is None and process.kill())
    os.close(theirs)
    deadline = time.monotonic() + 30
    while not server.answers():
        assert time.monotonic() < deadline and process.poll() is None, process.returncode
        time.sleep(0.05)
    assert server.connect().pread(MIB, 0) == noise("hangup", MIB)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 0 and not server.socket.exists()
    server.check()
    server.command = ["nohup", *server.command]
    server.start()
    os.kill(server.pid, signal.SIGHUP)
    time.sleep(0.5)
    assert server.alive() and "SIGHUP" not in server.log_text().split("stopped")[-1]
    server.stop()


def test_create_refuses(t):
    """Over a pool, a file system or a partition table only with --force."""
    first = t.devices(GIB)[0]
    t.forebay("create", "--device", first, "--copies", "1", "--name", "mine")
    t.refused(t.bin, "create", "--device", first, "--copies", "1", saying=("force",))
    t.forebay("create", "--device", first, "--copies", "1", "--force")

    ext4 = t.dir / "ext4.img"
    ext4.write_bytes(b"")
    t.run("truncate", "-s", "1G", ext4)
    t.run("mke2fs", "-q", "-t", "ext4", ext4)
    assert (
        "ext"
        in t.refused(t.bin, "create", "--device", ext4, "--copies", "1", saying=("force",)).lower()
    )
    t.run("e2fsck", "-fn", ext4)
    t.forebay("create", "--device", ext4, "--copies", "1", "--force")

    # A partition table: MBR signature; and a GPT with its protective MBR wiped.
    for name, offset, signature in (("mbr", 510, b"\x55\xaa"), ("gpt", 512, b"EFI PART\0\0\1\0")):
        path = t.dir / f"{name}.img"
        with open(path, "wb") as file:
            file.truncate(GIB)
            file.seek(offset)
            file.write(signature)
        t.refused(t.bin, "create", "--device", path, "--copies", "1", saying=("force",))
    if shutil.which("mkfs.xfs"):
        xfs = t.dir / "xfs.img"
        xfs.write_bytes(b"")
        t.run("truncate", "-s", "1G", xfs)
        t.run("mkfs.xfs", "-q", xfs)
        t.refused(t.bin, "create", "--device", xfs, "--copies", "1", saying=("force",))


def contents_of_all_kinds(t):
    """Users' data that no list of signatures knows, as files of 64 MiB: name and content."""
    text = b"Dear diary, today nothing happened.\n"
    yield "text", text * (64 * MIB // len(text))
    yield "encrypted", noise("encrypted", 64 * MIB)
    source = t.dir / "source"
    source.mkdir()
    (source / "one").write_bytes(noise("one", 64 * MIB))
    t.run("tar", "-cf", t.dir / "archive.tar", "-C", source, "one")
    yield "tar", (t.dir / "archive.tar").read_bytes()
    with contextlib.closing(sqlite3.connect(t.dir / "data.db")) as database:
        database.execute("create table diary (day, line)")
        database.executemany("insert into diary values (?, ?)", [(n, "x" * 99) for n in range(999)])
        database.commit()
    yield "database", (t.dir / "data.db").read_bytes().ljust(64 * MIB, b"\0")
    # Of a member of a RAID nothing but the end may tell.
    yield "end", bytes(64 * MIB - 4096) + noise("end", 4096)


@pool_only
@limit(300)
def test_what_no_list_knows_is_kept(t):
    """A device that is not zeros at its beginning and its end is overwritten with --force only:
    by create, create --cache, device add, device replace and cache attach."""
    first = t.devices(GIB)[0]
    t.forebay("create", "--device", first)
    server = t.serve([first], "--cache", t.dir / "none.img")
    ask = ("--socket", server.control)
    place = t.dir / "place.img"
    new = t.dir / "new.img"
    commands = (
        ("create", "--device", place),
        ("create", "--device", new, "--size", "1G", "--cache", place),
        ("device", "add", place, *ask),
        ("device", "replace", first, place, *ask),
        ("cache", "attach", place, *ask),
    )
    for name, content in contents_of_all_kinds(t):
        content = content[: len(content) // 4096 * 4096]
        place.write_bytes(content)
        for command in commands:
            said = t.refused(t.bin, *command, saying=("--force",))
            assert f"{place} holds " in said and "not zeros at byte" in said, (name, said)
            assert place.read_bytes() == content, (name, command)
        assert not new.exists()
    assert len(server.status()["pool"]["devices"]) == 1 and "cache" not in server.status()
    # It names what blkid knows.
    if shutil.which("blkid"):
        t.run("mke2fs", "-q", "-F", "-t", "ext4", place, "256M")
        assert "a file system (ext4)" in t.refused(t.bin, "device", "add", place, *ask)

    # With --force each of them does it; and what Forebay gives back is empty.
    with open(place, "r+b") as file:
        file.truncate(256 * MIB)
    t.forebay("device", "add", place, "--force", *ask)
    t.forebay("device", "remove", place, "--wait", *ask)
    t.forebay("cache", "attach", place, *ask)
    server.volume("create", "v", "--size", "64M")
    server.connect("v").pwrite(noise("v", MIB), 0)
    t.forebay("cache", "detach", *ask)
    t.forebay("device", "replace", first, place, "--wait", *ask)
    t.forebay("device", "add", first, *ask)
    server.stop()


@pool_only
def test_a_detached_cache_that_holds_something_else_by_now(t):
    """The mark of a detached cache says nothing of what was written to its device since."""
    first = t.devices(GIB)[0]
    t.forebay("create", "--device", first)
    server = t.serve([first])
    ask = ("--socket", server.control)
    place = t.dir / "place.img"
    for _ in range(2):
        t.forebay("cache", "attach", place, "--size", "64M", *ask)
        t.forebay("cache", "detach", *ask)
    with open(place, "r+b") as file:
        file.seek(MIB)
        file.write(b"somebody's data")
    kept = place.read_bytes()
    said = t.refused(t.bin, "cache", "attach", place, "--size", "64M", *ask, saying=("--force",))
    assert "cache that was detached" in said and place.read_bytes() == kept, said
    t.forebay("cache", "attach", place, "--force", *ask)
    t.forebay("cache", "detach", *ask)
    server.stop()


def takes_a_petabyte(path):
    """Whether a file may be so large here."""
    path.touch()
    try:
        os.truncate(path, 1 << 50)
    except OSError:
        return False
    finally:
        path.unlink()
    return True


def test_create_refuses_nonsense(t):
    devices = t.devices(GIB, GIB)
    t.refused(t.bin, "create", "--device", t.dir / "missing")
    huge = t.dir / "huge.img"
    if not takes_a_petabyte(huge):
        t.refused(t.bin, "create", "--device", huge, "--size", "1P", saying=("too large",))
        assert not huge.exists(), "an empty file is left behind"
    t.refused(t.bin, "create", "--device", devices[0], "--copies", "2")
    t.refused(t.bin, "create", "--device", devices[0], "--device", devices[0])
    t.refused(t.bin, "create", *device_words(devices), "--copies", "4")
    small = t.dir / "small"
    small.write_bytes(bytes(4096))
    t.refused(t.bin, "create", "--device", small, "--copies", "1")
    t.refused(
        t.bin, "serve", *device_words(devices), "--nbd-socket", t.dir / "n", "--socket", t.dir / "c"
    )
    t.refused(t.bin, "check", "--device", devices[0])


def test_volumes(t):
    """create, list, resize, delete, and what they refuse."""
    server = t.up(size="1G", volume_size="64M")
    server.volume("create", "one", "--size", "1G")
    server.volume("create", "two", "--size", "10G", "--sector", "4096")
    listed = {
        one["name"]: one["size_bytes"] for one in json.loads(server.volume("list", "--json").stdout)
    }
    assert listed == {"vol0": 64 * MIB, "one": GIB, "two": 10 * GIB}, listed
    for name in listed:
        assert name in server.volume("list").stdout

    def refused(*words):
        t.refused(t.bin, "volume", *words, "--socket", server.control)

    refused("create", "one", "--size", "1G")
    refused("create", "", "--size", "1G")
    refused("create", "x" * 5000, "--size", "1G")
    refused("create", "three", "--size", "0")
    refused("create", "three", "--size", "1000")
    refused("create", "three", "--size", "1G", "--sector", "1000")
    refused("resize", "nobody", "--size", "1G")
    refused("delete", "nobody", "--yes")
    # What is to be typed is quoted where a shell would cut it.
    server.volume("create", "it's mine", "--size", "1G")
    server.volume("read-only", "it's mine", "on")
    said = server.volume("delete", "it's mine", ok=(1,)).stderr
    words = said.split("nothing changed: ")[1].split(", then")[0]
    assert shlex.split(words) == ["forebay", "volume", "read-only", "it's mine", "off"], said
    server.volume("read-only", "it's mine", "off")
    server.volume("delete", "it's mine")
    server.volume("resize", "one", "--size", "3G")
    server.volume("delete", "two")
    server.restart()
    assert {one["name"]: one["size_bytes"] for one in server.status()["volumes"]} == {
        "vol0": 64 * MIB,
        "one": 3 * GIB,
    }
    assert server.connect("one").get_size() == 3 * GIB
    t.refused(t.bin, "volume", "list", "--socket", t.dir / "nothing.sock")


@pool_only
def test_status(t):
    """Everything that the issue names is there and moves."""
    server = t.up(size="1G", volume_size="64M")
    handle = server.connect()
    for number in range(20):
        handle.pwrite(noise(number, 65536), number * 65536)
        handle.flush()
    handle.pread(MIB, 0)
    status = server.status()
    pool = status["pool"]
    for name in ("name", "uuid", "state", "copies", "capacity_bytes", "used_bytes", "devices"):
        assert name in pool, name
    assert (
        pool["copies"] == 2
        and len(pool["devices"]) == 2
        and 0 < pool["used_bytes"] < pool["capacity_bytes"] <= GIB
    )
    for device in pool["devices"]:
        assert set(device) >= {"path", "id", "state", "errors"}
        assert set(device["errors"]) >= {"read", "write", "checksum", "healed"} and not any(
            device["errors"].values()
        )
    volume = status["volumes"][0]
    assert (
        volume["name"] == "vol0"
        and volume["size_bytes"] == 64 * MIB
        and MIB <= volume["allocated_bytes"] <= 2 * MIB
    ), volume
    commit = status["commit"]
    assert commit["count"] >= 20
    for name in ("critical_section_us", "duration_ms"):
        assert commit[name]["p50"] <= commit[name]["p99"] <= commit[name]["max"], commit
    assert set(commit["block_group_updates"]) >= {"written", "skipped"}
    foreground = status["io"]["foreground"]
    for name in ("read", "write", "flush"):
        latency = foreground[name]["latency_us"]
        assert latency["p50"] <= latency["p99"] <= latency["p999"] <= latency["max"], latency
    assert foreground["read"]["count"] > 0 and foreground["write"]["bytes"] >= 20 * 65536, (
        foreground
    )
    assert sum(one["flush"]["count"] for one in status["io"].values()) >= 20, (
        "flushes of devices, in whatever class"
    )
    assert "vol0" in t.forebay("status", "--socket", server.control).stdout
    t.refused(t.bin, "status", "--json", "--socket", t.dir / "nothing.sock")


def test_check_and_dump(t):
    """The offline check of a directory and of devices; dump shows JSON."""
    server = t.up(size="1G", volume_size="64M")
    handle = server.connect()
    handle.pwrite(noise("dump", MIB), 0)
    handle.flush()
    server.settle()
    server.stop()
    t.forebay("check", server.socket.parent)
    t.forebay("check", "--data", server.socket.parent)
    # Without a word about the cache, it is said that it was not checked.
    report = t.forebay("check", *device_words(server.devices), ok=(5 if t.cached else 0,)).stdout
    assert ("NOT ALL WAS CHECKED" in report and "--cache" in report) == t.cached, report
    report = json.loads(t.forebay("check", "--json", server.socket.parent).stdout)
    assert isinstance(report, dict) and report
    t.refused(t.bin, "check", t.dir / "missing")

    def dump(*what):
        lines = t.forebay("dump", *what, "--dir", server.socket.parent).stdout.splitlines()
        assert lines, f"dump {what} shows nothing"
        return [json.loads(line) for line in lines]

    assert "vol0" in json.dumps(dump("volumes"))
    for what in (("superblock",), ("groups",), ("mapping", "vol0"), ("extents", "vol0")):
        dump(*what)
    t.refused(t.bin, "dump", "mapping", "nobody", "--dir", server.socket.parent)
    t.refused(t.bin, "dump", "everything", "--dir", server.socket.parent)


@pool_only
def test_check_of_what_is_no_cache(t):
    """In the place of a cache that the pool does not have, nothing is a fault."""
    server = t.up(size="1G", volume_size="64M")
    server.stop()
    image = server.socket.parent / "cache.img"
    for held in (b"", b"short", bytes(1 << 20)):
        image.write_bytes(held)
        said = t.forebay("check", server.socket.parent).stdout
        assert "clean" in said and "to do" not in said, said
        named = t.run(t.bin, "check", *device_words(server.devices), "--cache", image, ok=(5,))
        assert "leave --cache out" in named.stdout, named.stdout


def test_check_finds_damage(t):
    """A device cut short, one emptied, one full of noise: found and named; a server refuses by name
    or serves what is right."""
    server = t.up(size="320M", volume_size="64M")
    handle = server.connect()
    handle.pwrite(noise("damage", 16 * MIB), 0)
    handle.flush()
    server.stop()
    good = t.dir / "good.img"
    victim = server.devices[1]
    t.run("cp", "--sparse=always", victim, good)
    size = good.stat().st_size

    def cut():
        os.truncate(victim, size // 2)

    def empty():
        os.truncate(victim, 0)
        os.truncate(victim, size)

    def noisy():
        with open(victim, "r+b") as file:
            file.seek(1 * MIB)
            file.write(noise(1, 16 * MIB))

    for damage in (cut, empty, noisy):
        t.run("cp", "--sparse=always", good, victim)
        damage()
        text = t.refused(t.bin, "check", "--data", server.socket.parent)
        assert "pool1.img" in text, f"{damage.__name__}: the report must name the device"
        # What a start does to the others must not reach the next turn.
        cache = server.socket.parent / "cache.img"
        others = [path for path in (server.devices[0], cache) if path.exists()]
        for path in others:
            t.run("cp", "--sparse=always", path, t.dir / path.name)
        server.spawn()
        while not server.answers() and server.alive():
            time.sleep(0.02)
        if server.alive():
            assert server.connect().pread(16 * MIB, 0) == noise("damage", 16 * MIB), damage.__name__
            server.stop()
        else:
            assert (
                server.process.returncode == 1 and "pool1.img" in server.log_text().splitlines()[-1]
            ), damage.__name__
        for path in others:
            (t.dir / path.name).replace(path)


def test_configuration_file(t):
    """`forebay serve --config`, and what it says to a file that is wrong."""
    devices = t.devices(GIB, GIB)
    t.forebay("create", *device_words(devices))
    config = t.dir / "forebay.toml"
    config.write_text(
        'devices = ["device0.img", "device1.img"]\n[nbd]\nsocket = "nbd.sock"\n[control]\n'
        'socket = "control.sock"\n'
    )
    server = t.serve([], "--config", config, start=False)
    server.command = [str(t.bin), "serve", "--config", str(config)]
    server.start()
    assert len(server.status()["pool"]["devices"]) == 2
    server.stop()
    config.write_text('devices = ["device0.img"]\ncolour = "red"\n')
    t.refused(*server.command, saying=("colour",))


def test_log_json(t):
    server = t.up("--log", "json", size="1G", volume_size="64M")
    server.stop()
    lines = [line for line in server.log_text().splitlines() if line.startswith("{")]
    assert lines and all(isinstance(json.loads(line), dict) for line in lines)


@limit(90)
def test_create_and_serve(t):
    """A pool made by hand, one to three copies, served from its devices in any order."""
    for copies in (1, 2, 3):
        devices = [t.dir / f"c{copies}-{number}.img" for number in range(3)]
        for device in devices:
            with open(device, "wb") as file:
                file.truncate(512 * MIB)
        t.forebay(
            "create", *device_words(devices), "--copies", str(copies), "--name", f"pool{copies}"
        )
        server = t.serve(devices)
        pool = server.status()["pool"]
        assert pool["name"] == f"pool{copies}" and pool["copies"] == copies
        server.volume("create", "v", "--size", "1G")
        handle = server.connect("v")
        handle.pwrite(noise(copies, 4 * MIB), 100 * MIB)
        handle.flush()
        server.kill()
        server = t.serve(list(reversed(devices)))
        assert server.connect("v").pread(4 * MIB, 100 * MIB) == noise(copies, 4 * MIB)
        server.stop()
        server.check()
