"""`forebay volume limit`, and volumes that share a pool: what clients of one do costs those of
another no more than their share."""

import json
import time

import nbd

from harness.case import limit, once, pool_only
from harness.data import GIB, KIB, MIB, noise
from harness.server import expect_error

ESHUTDOWN = 108


class Limits:
    """`forebay volume limit` of one server."""

    def __init__(self, t, server):
        self.t = t
        self.server = server

    def __call__(self, *words):
        return self.server.volume("limit", *words).stdout

    def of(self, name):
        return json.loads(self(name, "--json"))

    def refused(self, *words, saying=()):
        before = [self.of(volume["name"]) for volume in self.server.status()["volumes"]]
        self.t.refused(
            self.t.bin, "volume", "limit", *words, "--socket", self.server.control, saying=saying
        )
        assert before == [self.of(volume["name"]) for volume in self.server.status()["volumes"]], (
            "what is refused must change nothing"
        )


class Load:
    """So many requests of one connection at a time, which another begins when one has ended."""

    def __init__(self, server, export, depth, places, write=None):
        self.handle = server.connect(export)
        self.depth = depth
        self.places = places
        self.write = write
        self.begun = {}
        self.latencies = []
        self.buffers = {}

    def turn(self, more=True):
        """Takes what has ended, and begins others."""
        now = time.monotonic()
        while self.begun and (cookie := self.handle.aio_peek_command_completed()) > 0:
            self.handle.aio_command_completed(cookie)
            self.latencies.append(now - self.begun.pop(cookie))
            self.buffers.pop(cookie)
        while more and len(self.begun) < self.depth:
            place = next(self.places)
            buffer = self.write or nbd.Buffer(4 * KIB)
            cookie = (
                self.handle.aio_pwrite(buffer, place)
                if self.write
                else self.handle.aio_pread(buffer, place)
            )
            self.begun[cookie] = time.monotonic()
            self.buffers[cookie] = buffer

    def end(self):
        while self.begun:
            self.handle.poll(1000)
            self.turn(more=False)


def places(seed, size):
    """Places of blocks, all over a volume, in no order."""
    blocks = size // (4 * KIB)
    at = seed
    while True:
        at = (at * 6364136223846793005 + 1442695040888963407) % 2**64
        yield (at >> 33) % blocks * 4 * KIB


def drive(loads, seconds):
    """Keeps these loads going; their requests that ended meanwhile."""
    until = time.monotonic() + seconds
    before = [len(load.latencies) for load in loads]
    while time.monotonic() < until:
        for load in loads:
            load.handle.poll(0)
            load.turn()
        time.sleep(0.0005)
    return [load.latencies[n:] for load, n in zip(loads, before)]


def mean(values):
    return sum(values) / len(values)


@once
def test_set_shown_kept(t):
    """A limit is set, shown, changed in part, kept over a restart and a kill, removed."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    limits = Limits(t, server)
    assert limits.of("vol0") is None and limits("vol0") == "none\n"
    assert "500 IOPS, burst 1s" in limits("vol0", "--iops", "500")
    want = {"iops": 500, "bytes_per_second": 50 * MIB, "burst_ms": 2000}
    assert json.loads(limits("vol0", "--bandwidth", "50M", "--burst", "2s", "--json")) == want
    listed = server.volume("list").stdout
    assert "LIMIT" in listed and "500 IOPS, 50 MiB/s, burst 2s" in listed, listed
    assert json.loads(server.volume("list", "--json").stdout)[0]["limit"] == want
    assert server.status()["volumes"][0]["limit"] == want
    assert "50 MiB/s" in t.forebay("status", "--socket", server.control).stdout
    server.volume("create", "other", "--size", "64M")
    server.restart()
    assert limits.of("vol0") == want and limits.of("other") is None
    limits("vol0", "--iops", "none")
    server.kill()
    server.start()
    assert limits.of("vol0") == {"iops": None, "bytes_per_second": 50 * MIB, "burst_ms": 2000}
    assert "none (it was: 50 MiB/s, burst 2s)" in limits("vol0", "--none")
    assert limits.of("vol0") is None
    server.stop()
    server.check()


@once
def test_refused(t):
    """What is refused says what is wrong, where, and what to do; it changes nothing."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    limits = Limits(t, server)
    limits("vol0", "--iops", "7")
    limits.refused(
        "vol0",
        "--iops",
        "20000000",
        saying=(
            "volume vol0: the limit of requests a second is 20000000; it can be 1 to 10000000",
        ),
    )
    limits.refused("vol0", "--bandwidth", "1K", saying=("it can be 4K to 1T",))
    limits.refused("vol0", "--burst", "0s", saying=("1ms to 1h",))
    limits.refused("vol0", "--burst", "2h", saying=("1ms to 1h",))
    limits.refused("vol0", "--iops", "0", saying=("say none",))
    limits.refused("vol0", "--iops", "fast", saying=("number of requests",))
    limits.refused("vol0", "--bandwidth", "fast", saying=("not a size",))
    limits.refused("vol0", "--none", "--iops", "5", saying=("cannot be used with",))
    limits.refused("vol9", "--iops", "5", saying=("forebay volume list",))
    server.volume("create", "other", "--size", "64M")
    limits.refused("other", "--burst", "5s", saying=("--iops or --bandwidth",))
    assert limits.of("vol0")["iops"] == 7


@limit(90)
def test_rates(t):
    """Rates are as the limits say, whatever is asked for; a change is felt at once, another volume
    feels nothing."""
    server = t.up(size="1G", volume_size="64M")
    server.volume("create", "other", "--size", "64M")
    limits = Limits(t, server)
    block = nbd.Buffer.from_bytearray(bytearray(noise("block", 4 * KIB)))
    loads = [
        Load(server, "vol0", 16, places(n, 64 * MIB), block if n % 2 else None) for n in range(4)
    ]
    other = Load(server, "other", 4, places(9, 64 * MIB))

    def rate(seconds=2):
        before = time.monotonic()
        done = drive([*loads, other], seconds)
        took = time.monotonic() - before
        return sum(len(one) for one in done[:-1]) / took, len(done[-1]) / took

    free, _ = rate()
    limits("vol0", "--iops", "100", "--burst", "100ms")
    drive(loads, 0.5)
    slow, beside = rate()
    limits("vol0", "--iops", "400")
    drive(loads, 0.5)
    faster, _ = rate()
    limits("vol0", "--iops", "none", "--bandwidth", "800K")
    drive(loads, 0.5)
    by_bytes, _ = rate()
    limits("vol0", "--none")
    drive(loads, 0.5)
    again, _ = rate()
    print(
        f"free {free:.0f}, 100: {slow:.0f}, 400: {faster:.0f}, 800K: {by_bytes:.0f}, "
        f"free again {again:.0f}; beside the limit {beside:.0f}"
    )
    assert slow < 125 and faster < 500 and by_bytes < 250, "never more than the rate and the burst"
    # Less only where the machine is slow beyond measure.
    assert 2.5 < faster / slow < 6 and by_bytes / slow > 1.2, (slow, faster, by_bytes)
    assert beside > 3 * slow and again > 3 * faster, (beside, again)
    # A volume that is limited to nearly nothing is flushed, resized and deleted without delay, and
    # the server ends.
    limits("vol0", "--iops", "1", "--burst", "1ms")
    drive(loads, 1)
    began = time.monotonic()
    server.connect("other").flush()
    server.volume("resize", "vol0", "--size", "128M")
    server.volume("create", "third", "--size", "64M")
    if t.cached:
        server.cache("mode", "vol0", "writethrough")
        server.cache("detach")
    server.stop()
    assert time.monotonic() - began < 20


@once
@limit(60)
def test_delete_tells_those_that_wait(t):
    """Requests that wait for the limit of a volume are told when it is deleted."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    server.volume("create", "other", "--size", "64M")
    server.volume("limit", "other", "--iops", "1")
    handle = server.connect("other")
    t.refused(
        t.bin, "volume", "delete", "other", "--yes", "--socket", server.control,
        saying=("1 connection has", "--force"),
    )
    handle.pread(4 * KIB, 0)
    buffer = nbd.Buffer(4 * KIB)
    cookie = handle.aio_pread(buffer, 0)
    handle.poll(50)
    server.volume("delete", "other", "--force")
    expect_error(ESHUTDOWN, lambda: wait(handle, cookie))


def wait(handle, cookie):
    while not handle.aio_command_completed(cookie):
        handle.poll(1000)


@pool_only
@limit(90)
def test_a_reader_beside_a_flood(t):
    """On a slow disk: a client with one request at a time waits for much less than one of another
    volume's many, which stand in line for each other."""
    device = t.devices(GIB)[0]
    t.forebay("create", "--device", device)
    server = t.serve([f"{device},emulate=hdd"])
    for name in ("flooded", "quiet"):
        server.volume("create", name, "--size", "64M")
        handle = server.connect(name)
        for at in range(0, 64 * MIB, 4 * MIB):
            handle.pwrite(noise(name, 4 * MIB), at)
        handle.flush()
    floods = [Load(server, "flooded", 64, places(n, 64 * MIB)) for n in range(8)]
    reader = Load(server, "quiet", 1, places(9, 64 * MIB))
    drive([*floods, reader], 8)
    # What had begun before has ended.
    *flood, alone = drive([*floods, reader], 15)
    flood = [latency for one in flood for latency in one]
    print(
        f"flood: {len(flood)} reads of {mean(flood):.2f} s; "
        f"reader: {len(alone)} of {mean(alone):.2f} s"
    )
    assert mean(alone) < mean(flood) / 2, (mean(alone), mean(flood))
    assert len(flood) > 3 * len(alone), "the disk is busy for the flood, not held for the reader"
    admission = server.status()["admission"]
    assert admission["waited_for_share"] > 0 and admission["waited_for_limit"] == 0, admission
    for load in [*floods, reader]:
        load.end()
