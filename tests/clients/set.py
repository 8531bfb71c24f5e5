"""`forebay set`: settings that change while the server serves, are listed, refused, saved,
forgotten; and the configuration file, which SIGHUP has the server read again."""

import json
import os
import signal
import time

from harness.case import cache_only, limit, once
from harness.data import GIB, KIB, MIB, noise

HEAD = """# The pool of the cellar.
devices = ["device0.img", "device1.img"]  # a mirror

[nbd]
socket = "nbd.sock"
[control]
socket = "control.sock"

# Slow disks.
[cache]
path = "fast.img"
"""


class Settings:
    """`forebay set` of one server."""

    def __init__(self, t, server):
        self.t = t
        self.server = server

    def __call__(self, *words):
        return self.t.forebay("set", *words, "--socket", self.server.control).stdout

    def of(self, key):
        return json.loads(self(key, "--json"))

    def value(self, key):
        one = self.of(key)
        return one["value"], one["from"]

    def refused(self, *words, saying):
        before = self("--json")
        text = self.t.refused(
            self.t.bin, "set", *words, "--socket", self.server.control, saying=saying
        )
        assert self("--json") == before, "what is refused must change nothing"
        return text


def wait_for(what, seconds):
    """Waits until `what` is true."""
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"not after {seconds} s"
        time.sleep(0.05)


def configured(t, more=""):
    """A server with a configuration file, and that file."""
    devices = t.devices(GIB, GIB)
    words = [word for device in devices for word in ("--device", device)]
    t.forebay("create", *words, "--cache", t.dir / "fast.img", "--cache-size", "64M")
    config = t.dir / "forebay.toml"
    config.write_text(HEAD + more)
    server = t.serve([], "--config", config, start=False)
    server.command = [str(t.bin), "serve", "--config", str(config)]
    return server.start(), config


@cache_only
def test_list(t):
    """All settings, one of them, for people and programs; where each value comes from."""
    server = t.up(
        "--cache-size", "64M", "--max-lag", "20s", "--commit-interval", "2s", size="1G",
        volume_size="64M",
    )
    settings = Settings(t, server)
    listed = json.loads(settings("--json"))
    keys = [one["key"] for one in listed]
    assert (
        len(keys) == len(set(keys)) > 20 and "cache.max_lag" in keys and "pool.dirty_nodes" in keys
    ), keys
    for one in listed:
        assert set(one) >= {"key", "value", "default", "from", "range", "changes", "what"}, one
        assert one["changes"] in ("at once", "restart") and one["from"] in ("default", "option"), (
            one
        )
        assert one["from"] == "option" or one["value"] == one["default"], one
    text = settings()
    for key in keys:
        assert key in text
    assert settings.value("max_lag") == ("20s", "option") and settings.value(
        "pool.commit_interval"
    ) == ("2s", "option")
    assert settings.of("cache.max_lag")["range"] == {"least": "100ms", "most": "1h"}
    assert settings.of("promote")["range"] == {"one_of": ["never", "first", "second"]}
    assert settings.of("index_memory")["changes"] == "restart"
    text = settings("cache.max_lag")
    assert text.startswith("cache.max_lag = 20s") and "100ms to 1h" in text, text


@cache_only
def test_bad_keys_and_values(t):
    """What is refused names the setting, its range and the nearest names, and changes nothing."""
    server = t.up("--cache-size", "64M", size="1G", volume_size="64M")
    settings = Settings(t, server)
    settings.refused("max_leg", "1s", saying=("cache.max_lag",))
    settings.refused("max_leg", saying=("cache.max_lag",))
    settings.refused("colour", "red", saying=("forebay set lists",))
    settings.refused("dirty_nodes", "100", saying=("pool.dirty_nodes or cache.dirty_nodes",))
    settings.refused("max_lag", "1ms", saying=("cache.max_lag is 1ms; it can be 100ms to 1h",))
    settings.refused("max_lag", "soon", saying=("soon",))
    settings.refused("dirty_target", "91", saying=("1 to 90",))
    settings.refused("dirty_target", "-1", saying=("-1",))
    settings.refused("promote", "third", saying=("never, first or second",))
    settings.refused("dirty_limit", "40", saying=("above cache.dirty_target, 40",))
    settings.refused("writeback_rate_min", "2G", saying=("at most cache.writeback_rate_max, 1G",))
    settings.refused("index_memory", "32M", saying=("restart",))
    settings.refused("nbd.socket", "x", saying=("starts",))
    settings.refused("max_lag", "1s", "--save", saying=("without a configuration file",))
    t.refused(t.bin, "set", "max_lag", "1s", "--socket", t.dir / "none.sock", saying=("no server",))


@cache_only
@limit(90)
def test_changes_are_felt_at_once(t):
    """A slow write-back is hastened, a long lag shortened, commits come sooner; clients write
    meanwhile."""
    server = t.up(
        "--cache-size", "64M", "--max-lag", "1h", "--commit-interval", "1h", size="1G",
        volume_size="64M",
    )
    settings = Settings(t, server)

    def cache():
        return server.status()["cache"]

    for key in ("writeback_rate_min", "writeback_rate_idle", "writeback_rate_max"):
        settings(key, "64K")
    writeback = cache()["writeback"]
    assert (writeback["rate"], writeback["min"], writeback["max"]) == (
        64 * KIB,
        64 * KIB,
        64 * KIB,
    ), writeback
    assert settings.value("cache.writeback_rate_max") == ("64K", "set")
    handle = server.connect()
    handle.pwrite(noise("slow", 8 * MIB), 0)
    handle.flush()
    assert cache()["dirty_bytes"] == 8 * MIB
    # It is overdue from now on, and crawls.
    settings("max_lag", "100ms")
    time.sleep(1)
    assert cache()["dirty_bytes"] == 8 * MIB and cache()["writeback"]["max_lag_seconds"] == 0.1
    # An image that is too old at once is told of at once.
    server.says("write-back lags", within=5)
    changed = json.loads(settings("writeback_rate_max", "1G", "--json"))
    assert (changed["before"], changed["value"], changed["saved"]) == ("64K", "1G", False), changed
    wait_for(lambda: cache()["dirty_bytes"] == 0, 10)
    assert handle.pread(8 * MIB, 0) == noise("slow", 8 * MIB)

    server.cache("mode", "vol0", "none")
    committed = server.status()["commit"]["count"]
    handle.pwrite(noise("direct", MIB), 16 * MIB)
    time.sleep(1)
    assert server.status()["commit"]["count"] == committed
    settings("commit_interval", "50ms")
    wait_for(lambda: server.status()["commit"]["count"] > committed, 5)
    # A cache that is attached later goes by them, too.
    server.cache("detach")
    settings("max_lag", "7s")
    server.cache("attach", t.dir / "other.img", "--size", "64M")
    writeback = cache()["writeback"]
    assert writeback["max_lag_seconds"] == 7 and writeback["min"] == 64 * KIB, writeback
    server.stop()


@once
def test_without_a_cache(t):
    """Settings of a cache that is not there are kept for the one that will be."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    settings = Settings(t, server)
    settings("max_lag", "9s")
    server.cache("attach", t.dir / "late.img", "--size", "64M")
    assert server.status()["cache"]["writeback"]["max_lag_seconds"] == 9


@cache_only
def test_saved_and_forgotten(t):
    """--save changes the file, and nothing else of it; a restart keeps that, and forgets the
    rest."""
    server, config = configured(t, 'max_lag   = "8s"  # as agreed\n# The end.\n')
    settings = Settings(t, server)
    before = config.read_text()
    assert settings.value("max_lag") == ("8s", "configuration")
    settings("max_lag", "9s")
    settings("dirty_target", "30")
    assert config.read_text() == before, "nothing is stored without --save"
    server.restart()
    assert settings.value("max_lag") == ("8s", "configuration") and settings.value(
        "dirty_target"
    ) == (40, "default")
    assert "configuration file" in settings("max_lag", "9s", "--save")
    settings("dirty_target", "30", "--save")
    settings("pool.commit_interval", "2s", "--save")
    head, end = before.replace('"8s"', '"9s"').split("# The end.\n")
    assert (
        config.read_text()
        == head + 'dirty_target = 30\n\n[pool]\ncommit_interval = "2s"\n# The end.\n' + end
    ), config.read_text()
    expected = {"cache.max_lag": "9s", "cache.dirty_target": 30, "pool.commit_interval": "2s"}
    for _ in range(2):
        assert {key: settings.value(key) for key in expected} == {
            key: (value, "configuration") for key, value in expected.items()
        }
        server.restart()
    # What was edited into something wrong meanwhile is not made worse, and nothing changes.
    config.write_text(config.read_text().replace("30", "96"))
    wrong = config.read_text()
    settings.refused("max_lag", "10s", "--save", saying=("dirty_target",))
    assert config.read_text() == wrong
    config.unlink()
    settings.refused("max_lag", "10s", "--save", saying=("forebay.toml",))
    server.stop()


@cache_only
def test_an_option_hides_the_file(t):
    """A saved setting that an option of the command line hides says so."""
    server, config = configured(t)
    server.stop()
    server.command += ["--max-lag", "5s"]
    server.start()
    settings = Settings(t, server)
    assert settings.value("max_lag") == ("5s", "option")
    assert "--max-lag" in settings("max_lag", "6s", "--save")
    assert 'max_lag = "6s"' in config.read_text()
    server.restart()
    assert settings.value("max_lag") == ("5s", "option")


class Log:
    """The lines of a server's log that come, without what is written to people."""

    def __init__(self, server):
        self.server = server
        self.seen = len(server.log_text())

    def after_hangup(self):
        """Those that a SIGHUP leads to."""
        os.kill(self.server.pid, signal.SIGHUP)
        wait_for(lambda: "was read again" in self.server.log_text()[self.seen :], 10)
        text = self.server.log_text()
        text, self.seen = text[self.seen :], len(text)
        return text


@cache_only
def test_hangup_reads_the_file_again(t):
    """What can change does, together; what was set at run time stays where the file says the same
    as before; what needs a restart is named, and a bad file changes nothing."""
    server, config = configured(t, 'max_lag = "8s"\ndirty_target = 30\npromote = "second"\n')
    settings, log = Settings(t, server), Log(server)
    server.volume("create", "vol0", "--size", "64M")
    handle = server.connect()
    settings("dirty_target", "20")
    settings("max_lag", "7s")
    settings("writeback_rate_max", "500M", "--save")
    settings("writeback_rate_max", "400M")
    log.seen = len(server.log_text())
    text = log.after_hangup()
    assert "INFO" in text and "nothing changed" in text and text.count("\n") == 1, text
    before = config.read_text()
    changed = before.replace('"8s"', '"9s"').replace('promote = "second"\n', "")
    changed += '[pool]\ncommit_interval = "2s"\ncached_nodes = 5000\n[io]\nbackend = "posix"\n'
    config.write_text(changed)
    text = log.after_hangup()
    [info] = [line for line in text.splitlines() if "INFO" in line]
    for change in (
        "cache.max_lag = 9s (it was 7s)",
        "cache.promote = first (it was second)",
        "pool.commit_interval = 2s (it was 5s)",
    ):
        assert change in info, text
    warned = [line for line in text.splitlines() if "WARN" in line]
    assert len(warned) == 2 and "io.backend" in warned[0] and "cached_nodes" in warned[1], text
    wanted = {
        "cache.max_lag": ("9s", "configuration"),
        "cache.promote": ("first", "default"),
        "pool.commit_interval": ("2s", "configuration"),
        "cache.dirty_target": (20, "set"),
        "cache.writeback_rate_max": ("400M", "set"),
        "pool.cached_nodes": (settings.of("pool.cached_nodes")["default"], "default"),
    }
    assert {key: settings.value(key) for key in wanted} == wanted
    assert server.status()["cache"]["writeback"]["max_lag_seconds"] == 9
    # Still to be restarted for, and nothing else.
    text = log.after_hangup()
    assert "nothing changed" in text and text.count("WARN") == 2, text
    settings("dirty_target", "50")
    everything, log.seen = settings("--json"), len(server.log_text())
    fits_alone = changed.replace("dirty_target = 30", "dirty_target = 30\ndirty_limit = 45")
    for wrong, words in (
        (changed.replace("[pool]", "[pool"), ("line ",)),
        (changed.replace("commit_interval", "commit_intervall"), ("line ", "commit_intervall")),
        (changed.replace('"9s"', '"1ms"'), ("line ", "cache.max_lag is 1ms", "100ms to 1h")),
        (fits_alone, ("cache.dirty_limit is 45", "set while the server runs")),
        (None, ("No such file",)),
    ):
        config.unlink()
        if wrong:
            config.write_text(wrong)
        text = log.after_hangup()
        assert text.count("ERROR") == text.count("\n") == 1 and "forebay.toml" in text, text
        assert all(word in text for word in words) and "nothing was changed" in text, text
        assert settings("--json") == everything
    # What was wrong is taken when it is right.
    config.write_text(changed.replace('"9s"', '"11s"'))
    assert "cache.max_lag = 11s (it was 9s)" in log.after_hangup()
    handle.pwrite(noise("after", MIB), 0)
    handle.flush()
    server.stop()
