"""Stalls of devices and of the engine, made one by one in a real server: `forebay explain` names
them. The slow devices are files of nbdfuse over nbdkit with a filter."""

import json
import random
import threading
import time

import nbd

from harness.background import Background
from harness.case import limit, once
from harness.data import MIB, noise
from harness.explain import Explain, reads
from harness.fuse import FuseFile, Still

SLOW = ("rdelay=30ms", "wdelay=30ms")
BLOCK = 4096


class Stalls:
    """A server whose pool or cache is on the slow device that is given."""

    def __init__(self, t, pool=None, cache=None, cache_in=None, cache_size="256M", settings=()):
        path = pool.path if pool else t.devices(1024 * MIB)[0]
        t.forebay("create", "--device", path, "--copies", "1")
        if cache_size and not cache:
            settings = (
                *settings,
                "--cache",
                (cache_in or t.dir) / "cache.img",
                "--cache-size",
                cache_size,
            )
        self.server = t.serve([path], *settings)
        if cache:
            t.forebay("cache", "attach", cache.path, "--socket", self.server.control)
        self.t = t
        self.server.volume("create", "vol0", "--size", "512M")
        self.handle = self.server.connect()
        self.explain = Explain(t, self.server)

    def restart_with(self, cache):
        """The index of the cache is not in memory then."""
        self.server.stop()
        self.server.command = [*self.server.command, "--cache", str(cache.path)]
        self.server.start()
        self.handle = self.server.connect()

    def fill(self, size):
        for at in range(0, size, MIB):
            self.handle.pwrite(noise("stalls", MIB), at)
        self.handle.flush()

    def each(self, ask, places, depth=16):
        """Asks for a block at each place, so many at a time."""
        under_way = [0]

        def done(_):
            under_way[0] -= 1
            return 1

        for place in places:
            while under_way[0] >= depth:
                self.handle.poll(-1)
            under_way[0] += 1
            ask(place, done)
        while under_way[0]:
            self.handle.poll(-1)

    def write(self, places, depth=16):
        block = nbd.Buffer.from_bytearray(bytearray(noise("block", BLOCK)))
        self.each(
            lambda at, done: self.handle.aio_pwrite(block, at, completion=done), places, depth
        )

    def discard(self, places, depth=16):
        self.each(
            lambda at, done: self.handle.aio_trim(BLOCK, at, completion=done), places, depth
        )

    def set(self, *settings):
        for setting in settings:
            self.t.forebay("set", *setting.split("="), "--socket", self.server.control)

    def read(self, places, depth=16):
        self.each(
            lambda at, done: self.handle.aio_pread(nbd.Buffer(BLOCK), at, completion=done),
            places,
            depth,
        )

    def named(self, slower_than, kind, is_it, least, *others):
        """At least so many requests were slow for this reason, and nearly all others because the
        machine had no time for the server or the client, or because of these layers."""
        busy = ("host", "client", *others)
        of = self.explain.named(
            slower_than, kind, lambda c: is_it(c) or c["layer"] in busy, least
        )
        right = sum(cause["requests"] for cause in of["causes"] if is_it(cause))
        assert right >= least, of["causes"]
        return of


def shuffled(blocks, of):
    """So many blocks of the first `of`, each once."""
    return [at * BLOCK for at in random.Random(7).sample(range(of), blocks)]


def is_of(device):
    return lambda cause: cause["layer"] == "device" and device in (cause["device"] or "")


@limit(120)
@once
def test_a_slow_cache_device(t):
    """Writes to a slow cache device name it; so do flushes, which wait for its journal."""
    s = Stalls(t, cache=FuseFile(t, "slow", 300 * MIB, ["delay"], SLOW))
    s.write(shuffled(300, 30_000))
    s.explain.named("15ms", "write", is_of("cache device"), 250)
    for at in range(20):
        s.write([at * BLOCK])
        s.handle.flush()
    s.explain.named("15ms", "flush", is_of("cache device"), 20)
    s.server.stop()


@limit(120)
@once
def test_a_cache_device_that_pauses(t):
    """What was asked of the cache device while it stood still names it."""
    still = Still(t, "still", 300 * MIB)
    pause(Stalls(t, cache=still), still, "cache device")


@limit(120)
@once
def test_a_pool_device_that_pauses(t):
    """What was asked of the pool's device while it stood still names it."""
    still = Still(t, "still", 1024 * MIB)
    pause(Stalls(t, pool=still, cache_size=None), still, "pool device")


@limit(120)
@once
def test_a_device_that_hangs(t):
    """What a device that does not answer keeps waiting is told while it hangs, and so is the
    device; a volume that was deleted meanwhile goes by its number."""
    still = Still(t, "still", 300 * MIB)
    s = Stalls(t, cache=still)
    s.server.volume("create", "vol1", "--size", "64M")
    other = s.server.connect("vol1")
    t.later(still.go_on)
    block = nbd.Buffer.from_bytearray(bytearray(noise("block", BLOCK)))
    still.stop()
    ended = []
    for handle in (s.handle, other):
        handle.aio_pwrite(block, 0, completion=lambda _: ended.append(0) or 1)
        handle.poll(0)
    until = time.monotonic() + 60
    # The cache was attached while the server ran.
    apart = "configuration-differs"
    while not (silent := [p for p in s.server.status()["health"] if p["page"] != apart]):
        assert time.monotonic() < until, "nothing is said of the device"
        time.sleep(0.2)
    told = lambda *words: t.forebay(*words, "--socket", s.server.control).stdout
    assert [problem["page"] for problem in silent] == ["device-silent"], silent
    assert str(still.path) in silent[0]["what"], silent
    assert len(ended) == 0
    device = f"a transfer of cache device {still.path}"
    text = s.explain()
    assert text.startswith("under way now: 2 requests for more than 20.0 ms;"), text
    assert device in " ".join(text.split()) and "not ended yet" in text, text
    now = json.loads(s.explain("--volume", "vol1", "--class", "write", "--json"))["under_way"]
    assert (now["requests"], now["oldest"][0]["volume"]) == (1, "vol1"), now
    assert now["longest_us"] >= 9e6 and device in now["text"], now
    assert abs(sum(part["us"] for part in now["oldest"][0]["parts"]) - now["longest_us"]) <= 1, now
    read = json.loads(s.explain("--class", "read", "--json"))["under_way"]
    assert (read["requests"], read["oldest"], read["text"]) == (0, [], None), read
    assert "under way now: 2 requests" in " ".join(told("status").split())
    top = told("top", "--once", "--every", "200ms")
    words = " ".join(top.split())
    assert "under way now: 2 requests" in words and "still.img silent" in words, top
    once = lambda words: words in s.server.log_text()
    while not once("has not answered for"):
        assert time.monotonic() < until, s.server.log_text()
        time.sleep(0.2)
    still.go_on()
    for handle in (s.handle, other):
        while handle.aio_in_flight():
            handle.poll(-1)
    assert len(ended) == 2
    assert [p["page"] for p in s.server.status()["health"]] == [apart]
    assert "under way" not in s.explain()
    s.explain.named("5s", "write", is_of("cache device"), 2)
    other.shutdown()
    number = json.loads(s.explain("--volume", "vol1", "--json"))["slowest"][0]["volume_id"]
    s.server.volume("delete", "vol1")
    assert f"of a deleted volume ({number})" in s.explain(), s.explain()
    gone = json.loads(s.explain("--volume", str(number), "--json"))["slowest"]
    assert [(one["volume"], one["volume_id"]) for one in gone] == [(None, number)], gone
    while not once("this problem is over"):
        assert time.monotonic() < until + 60, s.server.log_text()
        time.sleep(0.2)
    s.server.stop()


def pause(s, still, device):
    """Reads while a device stands still for a moment, some times; they name it."""
    size = 16 * MIB
    s.fill(size)
    # The nodes that say where the blocks are come to memory.
    s.read(range(0, size, 64 * BLOCK))
    for _ in range(4):
        still.stop()
        timer = threading.Timer(0.5, still.go_on)
        timer.start()
        reads(s.handle, shuffled(8, size // BLOCK))
        timer.join()
    s.explain.named("200ms", "read", is_of(device), 16)
    s.server.stop()


@limit(180)
@once
def test_a_full_cache(t):
    """Writers that wait for room in a small cache before a slow pool name the write-back.

    The cache is in memory: a disk under it that stands still for 30 ms is named too, and rightly.
    """
    slow = FuseFile(t, "slow", 1024 * MIB, ["delay"], ("wdelay=40ms",))
    s = Stalls(t, pool=slow, cache_in=t.memory(), cache_size="64M")
    s.write(shuffled(20_000, 100_000), depth=64)
    full = ("write_throttle", "buckets", "node_room")
    s.explain.named("30ms", "write", lambda c: c["stage"] in full, 100)
    s.server.stop()


@limit(120)
@once
def test_a_slow_commit(t):
    """Flushes that wait for a commit of the pool name its device."""
    slow = FuseFile(t, "slow", 1024 * MIB, ["delay"], ("wdelay=30ms",))
    s = Stalls(t, pool=slow, cache_size=None)
    for at in range(20):
        s.write([at * BLOCK])
        s.handle.flush()
    of = s.explain.named("15ms", "flush", is_of("pool device"), 20)
    assert all(cause["stage"] == "pool_commit" for cause in of["causes"]), of["causes"]
    s.server.stop()


@limit(120)
@once
def test_writes_of_the_same_block(t):
    """Writes that wait for earlier ones of the same block say so, and not that a device is slow."""
    s = Stalls(t, cache=FuseFile(t, "slow", 300 * MIB, ["delay"], SLOW))
    s.write([0] * 200, depth=16)
    s.explain.named("100ms", "write", lambda c: c["stage"] == "range_lock", 150)
    s.server.stop()


@limit(120)
@once
def test_an_index_that_is_not_in_memory(t):
    """Reads that load nodes of the index from a slow cache device name the index or the device."""
    slow = FuseFile(t, "slow", 1024 * MIB, ["delay"], ("rdelay=30ms",))
    s = Stalls(t, cache=slow, settings=("--index-memory", "1M"))
    # Every second block, so that each has a key of its own.
    s.write([at * BLOCK for at in range(0, 80_000, 2)], depth=64)
    s.restart_with(slow)
    s.read([2 * at for at in shuffled(600, 40_000)], depth=8)
    of = s.explain.named("20ms", "read", is_of("cache device"), 200)
    index = sum(cause["requests"] for cause in of["causes"] if cause["stage"] == "index_load")
    assert index >= 20, of["causes"]
    s.server.stop()


@limit(120)
@once
def test_a_change_of_the_mode(t):
    """Requests that wait for a change of the cache's mode name it."""
    slow = FuseFile(t, "slow", 1024 * MIB, ["delay"], ("wdelay=100ms",))
    # A disk that stands still would be named, rightly.
    s = Stalls(t, pool=slow, cache_in=t.memory())
    s.fill(MIB)

    class Changes(Background):
        def work(self):
            while not self.over.is_set():
                for mode in ("writethrough", "writeback"):
                    t.forebay("cache", "mode", "vol0", mode, "--socket", s.server.control)

    with Changes() as changes:
        until = time.monotonic() + 8
        while time.monotonic() < until:
            # Of blocks that were never written: no device is asked.
            s.read([256 * MIB + at * BLOCK for at in range(64)])
    assert changes.error is None, changes.error
    s.explain.named("50ms", "read", lambda c: c["stage"] == "mode_change", 16)
    s.server.stop()


@limit(120)
@once
def test_collection_of_an_index_on_a_slow_device(t):
    """Reads of a slow cache device beside the reads of garbage collection, which walks an index
    that is not in memory, name the device and the collection."""
    slow = FuseFile(t, "slow", 1024 * MIB, ["delay"], ("rdelay=30ms",))
    s = Stalls(t, cache=slow, settings=("--index-memory", "1M"))
    # Every second block, so that each has a key of its own.
    s.write([at * BLOCK for at in range(0, 80_000, 2)], depth=64)
    s.restart_with(slow)
    s.set("cache.max_lag=1h", "cache.writeback_rate_min=64K", "cache.writeback_rate_max=64K")
    s.set("cache.gc_pause=0s")

    class Collections(Background):
        def work(self):
            while not self.over.is_set():
                t.forebay("gc", "--socket", s.server.control)

    with Collections() as collections:
        # One at a time: nothing else of clients is beside it.
        s.read([2 * at for at in shuffled(150, 40_000)], depth=1)
    assert collections.error is None, collections.error
    of = s.explain.named("20ms", "read", is_of("cache device"), 100)
    beside = sum(c["requests"] for c in of["causes"] if c["holder"] == "collection")
    # The others were beside a pass of write-back, or alone.
    assert beside >= 15, of["causes"]
    s.server.stop()


@limit(120)
@once
def test_no_room_for_nodes(t):
    """Discards of blocks far from each other need nodes of the index, which find no room before
    write-back makes some; they name it."""
    s = Stalls(t, cache_in=t.memory(), cache_size="16M")
    s.set("cache.dirty_target=1", "cache.writeback_rate_idle=192K", "cache.writeback_rate_min=192K")
    s.set("cache.writeback_rate_max=192K")
    s.server.volume("create", "wide", "--size", "1T")
    wide = s.server.connect("wide")
    s.write([at * 3 * BLOCK for at in range(2_900)], depth=64)

    def discard(at, done):
        wide.aio_trim(BLOCK, at, completion=done)

    s.handle = wide
    s.each(discard, [n * 7919 % 100_003 * 2 * BLOCK for n in range(45_000)], depth=128)
    # A checkpoint waits for the same room, and so do requests that wait for that.
    stages = ("node_room", "journal_ring", "changed_nodes")
    of = s.named("200ms", "discard", lambda c: c["stage"] in stages, 100, "volume")
    room = sum(c["requests"] for c in of["causes"] if c["stage"] == "node_room")
    assert room >= 20, of["causes"]
    s.server.stop()
