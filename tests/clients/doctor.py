"""`forebay doctor`: what would hurt is found and said, nothing is changed, and a server may run."""

import json
import os
import shutil
import subprocess

from harness.case import SHM, Skip, once
from harness.data import GIB

FAULTY = """devices = ["{memory}/a.img", "none.img", "c.img", "{long}/d.img"]
[nbd]
socket = "in-the-way"
listen = ["0.0.0.0:0"]
tls = "off"
socket_mode = "0666"
[control]
socket = "token/below/control.sock"
[http]
listen = ["127.0.0.1:0"]
token_file = "token"
[pool]
commit_interval = "10m"
sit_out = "0s"
[scrub]
every = "0s"
[cache]
path = "fast.img"
writeback_rate_max = "4M"
writeback_rate_min = "1M"
max_lag = "1s"
stream_writes = "past"
[log]
level = "debug"
"""


def examined(t, *words, status=0, prefix=()):
    """Its findings, as programs see them: they are the same as for people."""
    for _ in range(5):
        done = t.run(*prefix, t.bin, "doctor", *words, "--json", ok=(status,))
        found = json.loads(done.stdout)
        text = t.run(
            *prefix, t.bin, "doctor", *words, ok=(status,), env={**os.environ, "COLUMNS": "80"}
        ).stdout
        levels = [line.split()[0] for line in text.splitlines()[:-1] if not line.startswith(" ")]
        # Between two looks another test may have taken a port, or given it back.
        if sorted(levels) == sorted(one["level"] for one in found):
            break
    else:
        raise AssertionError(f"programs see something else: {found}\n{text}")
    for one in found:
        assert set(one) == {"level", "check", "found", "todo"}, one
        assert (one["todo"] is None) == (one["level"] == "ok"), one
    assert "problem" in text.splitlines()[-1], text
    assert levels == sorted(levels, key=["problem", "warning", "note", "ok"].index), (
        "the worst is not first"
    )
    long = [
        line
        for line in text.splitlines()
        if len(line) > 80 and str(t.dir) not in line and str(SHM) not in line
    ]
    assert not long, long
    return found


def says(found, level, *words):
    """Whether a finding of this level has these words."""
    texts = [
        f"{one['check']} {one['found']} {one['todo']}" for one in found if one["level"] == level
    ]
    assert any(all(word in text for word in words) for text in texts), (
        f"no {level} with {words} in {texts}"
    )


def snapshot(directory):
    """What stands in a directory, and when it was last changed."""
    return {
        path: (os.lstat(path).st_mtime_ns, os.lstat(path).st_size)
        for path in sorted(directory.rglob("*"))
    }


@once
def test_beside_a_server(t):
    """A directory of `forebay up` has no problem, with a server and without; both find it as it is,
    and leave it."""
    server = t.up("--cache-size", "64M", size="1G", volume_size="64M")
    home = server.socket.parent
    before = {path for path in snapshot(home)}
    found = examined(t, home)
    assert not [one for one in found if one["level"] == "problem"], found
    says(found, "ok", "a server listens", "control.sock")
    says(found, "ok", "pool0.img: file of 1 GiB")
    says(found, "ok", "the cache", "cache.img")
    says(found, "ok", "its owner alone")
    says(found, "warning", "pool0.img and", "pool1.img are on the same disk")
    says(found, "warning", "the cache", "is on the same disk as")
    assert server.status()["pool"]["state"] == "online", server.status()["pool"]
    assert {path for path in snapshot(home)} == before
    server.stop()
    still = snapshot(home)
    found = examined(t, home)
    says(found, "ok", "nbd.sock (NBD) can be made")
    assert snapshot(home) == still, "something was changed"
    # It locked nothing: a server starts at once.
    server.start()
    server.kill()
    says(examined(t, home), "note", "control.sock", "left behind")
    server.devices[0].rename(server.devices[0].with_suffix(".away"))
    says(examined(t, home, status=3), "problem", "pool0.img is missing", "copy elsewhere")


@once
def test_beside_a_server_of_the_same_name_elsewhere(t):
    """A server that was started with the same relative path in another directory is not taken for
    the one that has ended here."""
    here, there = t.dir / "here", t.dir / "there"
    words = ["up", "data", "--size", "64M", "--volume-size", "16M", "--cache-size", "0"]
    for where in (here, there):
        where.mkdir()
        server = subprocess.Popen(
            [t.bin, *words, "--http-listen", "none"], cwd=where, stdout=subprocess.PIPE
        )
        try:
            server.stdout.readline()
            if where == there:
                says(examined(t, here / "data"), "note", "control.sock", "left behind")
                says(examined(t, there / "data"), "ok", "a server listens", "control.sock")
        finally:
            server.kill()
            server.wait()
            server.stdout.close()


@once
def test_a_device_that_comes_back_by_itself(t):
    """A device that was away while the pool was written is a note: a start takes it in."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    home, away = server.socket.parent, t.dir / "away"
    server.stop()
    server.devices[1].rename(away)
    server.start()
    handle = server.connect()
    handle.pwrite(b"x" * 4096, 0)
    handle.flush()
    handle.shutdown()
    server.stop()
    says(examined(t, home, status=3), "problem", "device 1 of the pool", "is missing")
    away.rename(server.devices[1])
    found = examined(t, home)
    says(found, "note", "pool1.img: stale", "by itself")
    assert not [one for one in found if one["level"] == "problem"], found


@once
def test_without_a_pool(t):
    """The machine alone is looked at; the arguments are checked."""
    found = examined(t, t.dir / "nothing")
    says(found, "note", "there is no pool", "forebay up")
    says(found, "ok", "files can be open")
    assert not (t.dir / "nothing").exists()
    t.run(t.bin, "doctor", t.dir, "--config", "f", ok=(2,))
    device = t.devices(GIB)[0]
    found = examined(t, "--device", f"{device},emulate=hdd")
    says(found, "note", "the pool has one device")
    says(found, "note", "slow on purpose", "emulate")


@once
def test_limits(t):
    """Too few open files; io_uring that is not permitted, or not wanted."""
    home = t.dir / "data"
    home.mkdir()
    for name in ("pool0.img", "pool1.img"):
        with open(home / name, "wb") as file:
            file.truncate(GIB)
    few = ("sh", "-c", 'ulimit -n "$0" && exec "$@"')
    says(
        examined(t, home, prefix=(*few, "150")),
        "warning",
        "at most 150 files",
        "ulimit -Hn",
        "nbd.max_connections",
    )
    says(examined(t, home, prefix=(*few, "40"), status=3), "problem", "at most 40 files")
    config = t.dir / "posix.toml"
    config.write_text('devices = ["data/pool0.img", "data/pool1.img"]\n[io]\nbackend = "posix"\n')
    texts = [one["found"] for one in examined(t, "--config", config) if one["check"] == "io_uring"]
    assert len(texts) == 1 and ("posix" in texts[0] or "is not" in texts[0]), texts


@once
def test_faults(t):
    """Each fault of a configuration is named, with what to do."""
    memory = t.memory()
    for path in (memory / "a.img", t.dir / "c.img", t.dir / "fast.img", memory / "d.img"):
        with open(path, "wb") as file:
            file.truncate(GIB)
    (t.dir / "in-the-way").write_text("precious")
    (t.dir / "token").write_text("0123456789abcdef0123\n")
    (t.dir / "token").chmod(0o644)
    config = t.dir / "faulty.toml"
    config.write_text(FAULTY.format(memory=memory, long=memory))
    before = snapshot(t.dir)
    found = examined(t, "--config", config, status=3)
    assert snapshot(t.dir) == before
    for level, *words in (
        ("problem", "none.img is missing"),
        ("problem", "in-the-way (NBD) is not a socket"),
        ("problem", "control.sock (control)", "cannot be used", "Not a directory"),
        ("problem", "token", "chmod 600"),
        ("warning", "a.img is in memory (tmpfs", "lost at power-off"),
        ("warning", "a.img and", "d.img are on the same disk"),
        ("warning", "the cache", "fast.img is on the same disk as", "c.img"),
        ("warning", "0.0.0.0:0", "without a password"),
        ("warning", "pool.commit_interval is 10m"),
        ("warning", "scrub.every is 0"),
        ("warning", "cache.writeback_rate_max is 4M", "cache.max_lag is 1s"),
        ("note", "cache.stream_writes has no effect any more", "remove the line"),
        ("note", "pool.sit_out is 0"),
        ("note", "cache.max_lag is 1s"),
        ("note", "log.level"),
    ):
        says(found, level, *words)
    (t.dir / "token").chmod(0o600)
    says(examined(t, "--config", config, status=3), "ok", "its owner alone")
    config.write_text("devices = []\n[pool]\ncommit_interval = 7\n")
    found = examined(t, "--config", config, status=3)
    says(found, "problem", "config", "line 3", "commit_interval", "forebay config --example")
    says(found, "ok", "files can be open")


@once
def test_room(t):
    """Sparse files that may outgrow their file system."""
    config = t.dir / "large.toml"
    for name in ("a.img", "b.img"):
        with open(t.dir / name, "wb") as file:
            file.truncate(8 << 40)
    config.write_text(
        'devices = ["a.img", "b.img"]\n[nbd]\nsocket = "n"\n[control]\nsocket = "c"\n'
    )
    says(
        examined(t, "--config", config),
        "warning",
        "a.img",
        "b.img take up to 16 TiB more",
        "has only",
    )


@once
def test_another_user(t):
    """What the user may not read or write is a problem; as root a note says so."""
    if os.geteuid() != 0:
        raise Skip("needs root")
    t.need("setpriv")
    devices = t.devices(GIB, GIB)
    config = t.dir / "forebay.toml"
    config.write_text(
        'devices = ["device0.img", "device1.img"]\n[nbd]\nsocket = "n"\n[control]\nsocket = "c"\n'
    )
    says(examined(t, "--config", config), "note", "as root", "sudo -u forebay")
    for path in (t.dir, t.dir.parent):
        path.chmod(0o755)
    for path in devices:
        path.chmod(0o600)
    # The binary may stand where that user cannot go.
    binary = t.dir / "forebay"
    shutil.copy(t.bin, binary)
    done = t.run(
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", binary, "doctor", "--config",
        config, "--json", ok=(3,),
    )
    found = json.loads(done.stdout)
    says(found, "problem", "device0.img may not be read and written: Permission denied", "chown")
    says(found, "problem", "the directory of", "(NBD)", "Permission denied")
