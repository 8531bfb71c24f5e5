"""The write-back cache as its user meets it: made, attached, detached and lost, under load and
through kills."""

import calendar
import json
import os
import random
import re
import shutil
import threading
import time

from clients.filesystems import Disk
from harness.case import cache_only, limit
from harness.data import GIB, KIB, MIB, data_ranges, noise
from harness.history import History, Load


def device_words(devices):
    return [word for device in devices for word in ("--device", device)]


def content(path):
    """What a sparse file holds, where it holds anything."""
    with open(path, "rb") as file:
        return [
            (start, file.seek(start) and file.read(end - start)) for start, end in data_ranges(path)
        ]


def image_of(server):
    return server.socket.parent / "cache.img"


@cache_only
@limit(90)
def test_life_in_up(t):
    """Made by itself, found again, detached by size 0 without loss; what was taken out stays out
    until it is asked for, and is made then on a pool that has data; no other size in between."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    assert not image_of(server).exists() and "cache" not in server.status()
    handle = server.connect()
    handle.pwrite(noise("before", MIB), 0)
    server.stop()
    server.command = server.command[:-2]
    server.start()
    assert not image_of(server).exists() and "cache" not in server.status()
    # How to have one.
    server.says("--cache-size SIZE")
    server.stop()
    where = image_of(server).with_name("cache.path")
    assert where.read_text() == "none\n"
    where.unlink()
    server.start()
    stat, free = image_of(server).stat(), shutil.disk_usage(t.dir).free
    assert stat.st_size == 2 * GIB or stat.st_size < free / 2, "the default"
    assert stat.st_blocks * 512 >= stat.st_size, "its space is reserved"
    server.says("Serving", "cache.img")
    handle = server.connect()
    assert handle.pread(MIB, 0) == noise("before", MIB)
    handle.pwrite(noise("in the cache", 8 * MIB), 8 * MIB)
    handle.flush()
    assert server.status()["cache"]["dirty_bytes"] >= 8 * MIB
    server.kill()
    server.start("--cache-size", "1G")
    server.says("keeps its size")
    assert image_of(server).stat().st_size == stat.st_size
    assert server.connect().pread(8 * MIB, 8 * MIB) == noise("in the cache", 8 * MIB)
    server.kill()
    server.start("--cache-size", "0")
    assert not image_of(server).exists() and "cache" not in server.status()
    assert server.connect().pread(8 * MIB, 8 * MIB) == noise("in the cache", 8 * MIB)
    server.kill()
    server.start()
    assert not image_of(server).exists() and "cache" not in server.status()
    server.kill()
    server.start("--cache-size", "64M")
    assert image_of(server).stat().st_size == 64 * MIB
    server.kill()
    server.start()
    assert "cache" in server.status()
    server.cache("detach")
    assert not image_of(server).exists(), "it was the server's own"
    assert server.connect().pread(8 * MIB, 8 * MIB) == noise("in the cache", 8 * MIB)
    server.stop()
    server.check()
    # No room is no reason not to serve, unless one asks for the cache.
    before = [content(device) for device in server.devices]
    t.refused(*server.command, "--cache-size", "900T", saying=("free",))
    assert before == [content(device) for device in server.devices]


@cache_only
@limit(60)
def test_up_finds_a_cache_that_was_attached_elsewhere(t):
    """After a kill too, and offline; after a detach there is none, whatever was tried."""
    server = t.up("--cache-size", "64M", size="1G", volume_size="64M")
    server.command = server.command[:-2]
    elsewhere = t.dir / "fast.img"
    server.cache("detach")
    server.cache("attach", elsewhere, "--size", "128M")
    handle = server.connect()
    handle.pwrite(noise("in the cache", 4 * MIB), 0)
    handle.flush()
    server.kill()
    server.start()
    assert server.status()["cache"]["path"] == str(elsewhere)
    assert server.connect().pread(4 * MIB, 0) == noise("in the cache", 4 * MIB)
    server.kill()
    elsewhere.rename(t.dir / "away.img")
    t.refused(*server.command, saying=("fast.img", "does not exist"))
    (t.dir / "away.img").rename(elsewhere)
    server.start()
    # A failed attach leaves it where it is.
    t.refused(
        t.bin, "cache", "attach", t.dir / "other.img", "--size", "64M", "--socket", server.control,
        saying=("already",),
    )
    server.cache("detach")
    t.refused(
        t.bin, "cache", "attach", t.dir / "none" / "c.img", "--size", "64M", "--socket",
        server.control, saying=("none",),
    )
    server.restart()
    assert "cache" not in server.status()
    assert elsewhere.exists(), "it is not this server's file"


@cache_only
@limit(60)
def test_older_half(t):
    """It was away when the cache was attached, and knows of none. What was flushed stays."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    server.command = server.command[:-2]
    first, second = server.devices
    server.stop()
    second.rename(second.with_name("away1.img"))
    server.start()
    image = image_of(server)
    server.cache("attach", image, "--size", "64M")
    handle = server.connect()
    handle.pwrite(noise("in the cache", 4 * MIB), 0)
    handle.flush()
    server.kill()
    before = image.read_bytes()
    first.rename(first.with_name("away.img"))
    second.with_name("away1.img").rename(second)
    for size in ("64M", "128M"):
        t.refused(*server.command, "--cache-size", size, saying=("was not detached", "older copy"))
        assert image.read_bytes() == before
    first.with_name("away.img").rename(first)
    server.start()
    assert server.connect().pread(4 * MIB, 0) == noise("in the cache", 4 * MIB)
    server.cache("detach")
    # One that was detached says so, and is taken again.
    other = t.dir / "other.img"
    for _ in range(2):
        server.cache("attach", other, "--size", "64M")
        server.cache("detach")


@cache_only
@limit(60)
def test_a_missing_cache(t):
    """Refused while it may hold what was flushed, and nothing is changed by that; given up only if
    it is really gone, with a report."""
    server = t.up("--cache-size", "256M", size="1G", volume_size="64M")
    handle = server.connect()
    handle.pwrite(noise("old", MIB), 0)
    begin = int(time.time())
    server.cache("flush")
    handle.pwrite(noise("new", MIB), 0)
    handle.flush()
    server.kill()
    t.refused(*server.command, "--forget-cache", saying=("is there",))
    image_of(server).rename(t.dir / "away.img")
    before = [content(device) for device in server.devices]
    text = t.refused(*server.command, saying=("not there",))
    assert "--forget-cache" in text and "cache.img" in text
    t.refused(
        t.bin, "serve", *device_words(server.devices), "--nbd-socket", t.dir / "n", "--socket",
        t.dir / "c", saying=("--cache",),
    )
    assert before == [content(device) for device in server.devices], (
        "a refused start must change nothing"
    )
    (t.dir / "away.img").rename(image_of(server))
    server.start()
    assert server.connect().pread(MIB, 0) == noise("new", MIB)
    server.connect().pwrite(noise("newer", MIB), 0)
    server.kill()
    image_of(server).unlink()
    server.start("--forget-cache")
    report = server.says("is given up", "it is of", "Serving").split("is given up")[-1]
    moment = calendar.timegm(
        time.strptime(re.search(r"it is of (\S+ \S+) UTC", report)[1], "%Y-%m-%d %H:%M:%S")
    )
    assert begin - 1 <= moment <= time.time(), "the age of the image"
    assert "vol0" in report and "lost" in report, report
    assert server.connect().pread(MIB, 0) in [noise(one, MIB) for one in ("old", "new", "newer")]
    server.restart()
    server.stop()
    server.check()


@cache_only
@limit(60)
def test_create_serve_and_configuration(t):
    """`create --cache`, `serve --cache`, and the section [cache]; another pool's cache is not
    touched."""
    devices = t.devices(GIB, GIB)
    cache = t.dir / "fast.img"
    t.refused(t.bin, "create", *device_words(devices), "--cache", cache, saying=("--cache-size",))
    words = ("create", *device_words(devices), "--cache", cache, "--cache-size")
    said = t.refused(t.bin, *words, "4M")
    assert "a cache of 4 MiB is too small: it needs 11 MiB at least" in said, said
    assert "bucket" not in said and not cache.exists(), said
    t.forebay(*words, "11M")
    cache.unlink()
    made = json.loads(
        t.forebay(
            "create", *device_words(devices), "--cache", cache, "--cache-size", "256M", "--json",
            "--force",
        ).stdout
    )
    assert made["cache"]["size_bytes"] == 256 * MIB
    server = t.serve(
        devices, "--cache", cache, "--max-lag", "10s", "--index-memory", "8M", "--cache-policy",
        "lru",
    )
    server.volume("create", "vol0", "--size", "64M")
    server.connect().pwrite(noise("config", MIB), 0)
    server.stop()
    config = t.dir / "forebay.toml"
    head = (
        'devices = ["device0.img", "device1.img"]\n[nbd]\nsocket = "nbd.sock"\n[control]\n'
        'socket = "control.sock"\n[cache]\n'
    )
    config.write_text(
        head + 'path = "fast.img"\nmax_lag = "7s"\nwriteback_rate_max = "50M"\npromote = "second"\n'
    )
    server.command = [str(t.bin), "serve", "--config", str(config)]
    server.start()
    assert server.status()["cache"]["writeback"]["max"] == 50 * MIB
    assert server.connect().pread(MIB, 0) == noise("config", MIB)
    server.stop()
    config.write_text(head + 'path = "fast.img"\nmax_leg = "7s"\n')
    t.refused(*server.command, saying=("max_leg",))

    other = [t.dir / "other0.img", t.dir / "other1.img"]
    t.forebay("create", *device_words(other), "--size", "1G")
    t.refused(
        t.bin, "serve", *device_words(other), "--nbd-socket", t.dir / "n", "--socket", t.dir / "c",
        "--cache", cache, "--cache-size", "64M", saying=("another pool",),
    )
    t.refused(t.bin, "create", *device_words(other), "--cache", cache, saying=("force",))
    # Another path is no damage of the pool's cache.
    blank, fourth = t.dir / "blank.img", t.dir / "fourth.img"
    with open(blank, "wb") as file:
        file.truncate(64 * MIB)
    third = t.dir / "third.img"
    t.forebay(
        "create", "--device", third, "--size", "1G", "--cache", fourth, "--cache-size", "64M"
    )
    for wrong in (blank, fourth):
        report = t.forebay("check", *device_words(devices), "--cache", wrong, ok=(5,)).stdout
        for part in (f"is not what {wrong} holds", "Bring it back", "name the pool's own cache"):
            assert part in report, report
    report = t.forebay("check", *device_words(other), "--cache", blank, ok=(5,)).stdout
    assert "which has none" in report and "leave --cache out" in report, report
    t.forebay("check", *device_words(devices), "--cache", cache)
    config.write_text(head + 'path = "fast.img"\n')
    server.start()
    assert server.connect().pread(MIB, 0) == noise("config", MIB)


@cache_only
@limit(60)
def test_status(t):
    """Everything that the issue names is there and moves, for programs and for people."""
    server = t.up("--cache-size", "256M", size="1G", volume_size="64M")
    server.volume("create", "aside", "--size", "64M")
    server.cache("mode", "aside", "none")
    handle = server.connect()
    for number in range(20):
        handle.pwrite(noise(number, 64 * KIB), number * 64 * KIB)
        handle.flush()
    handle.pread(MIB, 0)
    cache = server.status()["cache"]
    for name in (
        "state", "mode", "size_bytes", "dirty_bytes", "clean_bytes", "hit_ratio", "hits", "misses",
        "bypassed",
    ):
        assert name in cache, name
    assert (
        cache["state"] == "serving"
        and cache["dirty_bytes"] == 20 * 64 * KIB
        and cache["hits"] == 256
    ), cache
    assert (
        set(cache["buckets"]) >= {"free", "clean", "dirty", "metadata"}
        and cache["buckets"]["dirty"] > 0
    )
    assert (
        cache["journal"]["commits"] >= 20
        and 0 < cache["journal"]["used"] < cache["journal"]["size"]
    )
    for name in (
        "rate", "dirty", "target", "proportional", "integral", "passes", "lag_seconds", "min",
        "max",
    ):
        assert name in cache["writeback"], name
    server.cache("flush")
    cache = server.status()["cache"]
    assert (
        cache["dirty_bytes"] == 0
        and cache["clean_bytes"] == 20 * 64 * KIB
        and cache["writeback"]["passes"] > 0
    ), cache
    assert json.loads(server.cache("status", "--json").stdout)["state"] == "serving"
    for text in (
        server.cache("status").stdout,
        t.forebay("status", "--verbose", "--socket", server.control).stdout,
    ):
        for part in (
            "writeback: vol0; none: aside",
            "0 B dirty, 1.2 MiB clean",
            "100.0% found here",
        ):
            assert part in text, f"{part} is not in {text}"


@cache_only
@limit(120)
def test_modes_and_detach_under_load(t):
    """The mode is changed, the cache flushed, taken out and put in again while clients write and
    flush; killed each time; nothing flushed is lost."""
    history = History(6000)
    server = t.up("--cache-size", "32M", size="1G", volume_size="24M")
    image = image_of(server)

    def change(*steps):
        load = Load(history, server.connect, seed=str(steps))
        time.sleep(0.3)
        for step in steps:
            server.cache(*step)
            time.sleep(0.2)
        server.kill()
        load.finish()
        server.start()
        history.verify(server.connect())

    for mode in ("writethrough", "none", "writeback", "writearound", "writeback"):
        change(("mode", "vol0", mode))
        assert server.status()["volumes"][0]["cache_mode"] == mode, "it is kept"
    change(("flush",))
    change(
        ("detach",),
        ("attach", image, "--size", "32M"),
        ("mode", "vol0", "none"),
        ("mode", "vol0", "writeback"),
    )
    for words in (("attach", image), ("mode", "nobody", "none"), ("mode", "vol0", "fast")):
        t.refused(t.bin, "cache", *words, "--socket", server.control)
    server.cache("detach")
    assert not image.exists(), "it was the server's own"
    t.refused(t.bin, "cache", "detach", "--socket", server.control, saying=("no cache",))
    t.refused(t.bin, "cache", "attach", server.devices[0], "--socket", server.control)
    foreign = t.dir / "disk.qcow2"
    t.run("qemu-img", "create", "-q", "-f", "qcow2", foreign, "64M")
    t.refused(t.bin, "cache", "attach", foreign, "--socket", server.control, saying=("qcow2",))
    history.verify(server.connect())
    server.stop()
    server.check()


@cache_only
@limit(120)
def test_kill_in_a_loop_with_a_tiny_cache(t):
    """Write-back, fsync-heavy, the data six times the cache; then detached: the pool alone has
    everything."""
    history = History(24000)
    server = t.up("--cache-size", "16M", size="1G", volume_size="96M")
    rng = random.Random(time.time_ns())
    for number in range(6):
        load = Load(history, server.connect, seed=("tiny", number, rng.random()))
        time.sleep(rng.uniform(0.05, 1.6))
        server.kill()
        load.finish()
        server.start()
        history.verify(server.connect())
    assert history.flushes > 6, "hardly a flush got through: the load tests nothing"
    load = Load(history, server.connect, seed="last")
    time.sleep(0.5)
    load.finish()
    server.cache("detach")
    server.kill()
    server.check()
    assert not image_of(server).exists(), "it was the server's own"
    server.command[-1] = "0"
    server.start()
    history.verify(server.connect())
    print(f"{history.stamp} writes, {history.flushes} flushes")


class Diary:
    """Writes numbered files, each fsynced with its directory before the next one begins, and notes
    when each was safe."""

    def __init__(self, directory):
        self.directory = directory
        self.safe = []
        self.thread = threading.Thread(target=self.write, daemon=True)
        self.thread.start()

    @staticmethod
    def page(number):
        return noise(("diary", number), 500 + number * 977 % 20_000)

    def write(self):
        here = os.open(self.directory, os.O_RDONLY)
        try:
            while True:
                with open(self.directory / f"{len(self.safe):06}", "wb") as file:
                    file.write(self.page(len(self.safe)))
                    file.flush()
                    os.fsync(file.fileno())
                os.fsync(here)
                self.safe.append(time.monotonic())
        except OSError:
            # The disk is dead.
            pass
        finally:
            os.close(here)


MAX_LAG_S = 4
# The machine may be busy; the server measures from its own side, too.
SLACK_S = 2


@cache_only
@limit(150)
def test_ext4_whose_cache_is_thrown_away(t):
    """In the middle of a load. The pool alone mounts, e2fsck finds it clean, and it is the image of
    one moment, at most max_lag before."""
    t.need("mkfs.ext4", "e2fsck")
    server = t.up(
        "--cache-size", "256M", "--max-lag", f"{MAX_LAG_S}s", size="2G", volume_size="512M"
    )
    disk = Disk(t, server)
    t.run(*disk.root, "mkfs.ext4", "-q", "-F", disk.attach())
    mounted = disk.mount()
    t.run(*disk.root, "chmod", "777", mounted)
    for name in ("diary", "churn"):
        (mounted / name).mkdir()
    diary = Diary(mounted / "diary")

    def churn():
        # Unsynced, overwritten and removed: it must not disturb, and e2fsck looks at it too.
        try:
            for number in range(1 << 20):
                (mounted / "churn" / str(number % 50)).write_bytes(noise(number, 300_000))
                if number % 3 == 0:
                    (mounted / "churn" / str(number * 7 % 50)).unlink(missing_ok=True)
        except OSError:
            pass

    churner = threading.Thread(target=churn, daemon=True)
    churner.start()
    time.sleep(3 * MAX_LAG_S + random.uniform(0, MAX_LAG_S))
    died = time.monotonic()
    server.kill()
    image_of(server).unlink()
    for thread in (diary.thread, churner):
        thread.join(60)
        assert not thread.is_alive(), "a writer still waits for the dead disk"
    disk.detach(dead=True)
    assert "NOT ALL WAS CHECKED" in server.check(ok=(5,)).stdout, "nothing is known of the cache"

    server.start("--forget-cache")
    server.says("is given up")
    loop = disk.attach()
    disk.mount()
    pages = sorted((mounted / "diary").iterdir())
    found = {int(path.name): path.read_bytes() for path in pages}
    disk.unmount()
    t.run(*disk.root, "e2fsck", "-fn", loop)
    disk.detach()
    survived = 0
    while found.get(survived) == Diary.page(survived):
        survived += 1
    # One more may have been on its way: its name or its bytes without the other.
    assert len(found) <= survived + 1, (
        f"pages {sorted(set(found) - set(range(survived)))[:9]} are there, "
        f"but page {survived} is not"
    )
    assert survived > 0 and len(diary.safe) > survived, (
        f"{survived} of {len(diary.safe)} survived: this shows nothing"
    )
    age = died - diary.safe[survived]
    print(
        f"{survived} of {len(diary.safe)} pages survived; "
        f"the first that is lost was {age:.1f} s old"
    )
    assert age <= MAX_LAG_S + SLACK_S, f"the image is {age:.1f} s old, max_lag is {MAX_LAG_S} s"
    server.stop()
    server.check()


@cache_only
@limit(60)
def test_the_age_of_the_image_goes_on(t):
    """Also while no server runs: a start does not make the pool's image young."""
    server = t.up("--cache-size", "64M", "--max-lag", "1h", size="1G", volume_size="64M")
    handle = server.connect()
    handle.pwrite(noise("young", MIB), 0)
    handle.flush()
    status = lambda: server.status()["cache"]["writeback"]
    assert "image_of_before_s" not in status()
    server.kill()
    time.sleep(3)
    server.start()
    assert 3 <= status()["image_of_before_s"] < 60, status()
    shown = t.forebay("cache", "status", "--socket", server.control).stdout
    assert "still that of before the start" in shown, shown
    server.cache("flush")
    assert "image_of_before_s" not in status()
