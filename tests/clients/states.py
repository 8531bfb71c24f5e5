"""States of docs/operations.md that nothing else here meets: each is seen by the name of its page,
and goes when what its page says is done."""

import errno
import random
import threading
import time

import nbd
from clients.device import device, ended, pool, served
from clients.ext4_devices import Faulty

from harness.case import cache_only, limit, pool_only
from harness.data import BLOCK, MIB, noise
from harness.fuse import FuseFile, Still, Unflushed
from harness.server import expect_error


def pages(server):
    """The pages of what is wrong, but for what the command line would have to say next time."""
    found = sorted(problem["page"] for problem in server.status()["health"])
    return [page for page in found if page != "configuration-differs"]


def comes_to(server, *expected, seconds=15):
    """Waits until these are the pages of all that is wrong."""
    deadline = time.monotonic() + seconds
    while (found := pages(server)) != sorted(expected):
        assert time.monotonic() < deadline, (found, expected)
        time.sleep(0.1)


def logged(server, words):
    """Waits until the log says it, once."""
    deadline = time.monotonic() + 15
    while words not in server.log_text():
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.1)
    assert server.log_text().count(words) == 1, server.log_text()


SEEDS = ("states", "beyond")


def fill(handle, size, seed="states"):
    for at in range(0, size, MIB):
        handle.pwrite(noise((seed, at), MIB), at)
    handle.flush()


@pool_only
def test_scrub_paused(t):
    server = t.up(volume_size="64M", size="1G")
    fill(server.connect(), 32 * MIB)
    scrub = lambda *words: t.forebay("scrub", *words, "--socket", server.control)
    scrub("start", "--rate", "1M")
    scrub("pause")
    assert pages(server) == []
    # It is long when the next one is due.
    t.forebay("set", "scrub.every", "1s", "--socket", server.control)
    comes_to(server, "scrub-paused")
    assert "a scrub has been paused for" in t.forebay("status", "--socket", server.control).stdout
    scrub("resume")
    comes_to(server)


@pool_only
def test_moves_paused(t):
    """A device that is back gets nothing of what it lacks while moves are paused."""
    good, away = t.devices(256 * MIB, 256 * MIB)
    server = pool(t, [good, away], 2)
    handle = server.connect()
    fill(handle, 4 * MIB)
    device(t, server, "pause")
    assert pages(server) == []
    device(t, server, "offline", away)
    fill(handle, 8 * MIB, "later")
    device(t, server, "online", away)
    comes_to(server, "moves-paused")
    assert server.status()["pool"]["state"] == "degraded"
    said = t.forebay("status", "--socket", server.control).stdout
    assert "is not brought up to date" in said, said
    device(t, server, "resume", "--wait")
    comes_to(server)


@pool_only
def test_pool_full(t):
    server = pool(t, t.devices(96 * MIB), 1)
    handle = server.connect()
    expect_error(errno.ENOSPC, lambda: fill(handle, 200 * MIB))
    comes_to(server, "pool-full")
    logged(server, 'page="pool-full"')
    handle.trim(200 * MIB, 0)
    handle.flush()
    comes_to(server)
    logged(server, 'this problem is over page="pool-full"')


@pool_only
def test_device_stale(t):
    """It is back, and cannot be written: then it stays stale, and gets all when it can."""
    (good,), faulty = t.devices(256 * MIB), Faulty(t, "faulty", 256 * MIB)
    server = pool(t, [good, faulty.path], 2)
    fill(server.connect(), 4 * MIB)
    server.stop()
    server = served(t, server, [good])
    assert pages(server) == ["device-missing"]
    fill(server.connect(), 8 * MIB, "later")
    server.stop()
    faulty.fail(faulty.writes)
    server = served(t, server, [good, faulty.path])
    comes_to(server, "device-stale")
    faulty.is_well()
    # It may have come back by itself just before.
    device(t, server, "online", faulty.path, "--wait", ok=(0, 1))
    comes_to(server)
    # The device is in use, and blocks that it lacks may still be copied.
    ended(t, server)
    server.stop()
    server.check()


@pool_only
def test_a_limit_of_file_sizes(t):
    """A write beyond it fails, as where there is no space; the process does not end."""
    (path,) = t.devices(256 * MIB)
    server = t.serve([path], start=False)
    t.forebay("create", "--device", path, "--copies", "1")
    # In blocks of 512 bytes.
    server.command = ["sh", "-c", 'ulimit -f 200000 && exec "$0" "$@"', *server.command]
    server.start()
    server.volume("create", "vol0", "--size", "200M")
    handle = server.connect()
    fill(handle, 16 * MIB)
    expect_error(errno.ENOSPC, lambda: fill(handle, 200 * MIB, "beyond"))
    assert "writes-fail" in pages(server), pages(server)
    assert handle.pread(MIB, 15 * MIB) in (noise((seed, 15 * MIB), MIB) for seed in SEEDS)
    server.stop()
    server.check()


@pool_only
def test_commits_fail(t):
    """The device refuses what a commit writes; it is told until the next start."""
    faulty = Faulty(t, "faulty", 256 * MIB)
    server = pool(t, [faulty.path], 1)
    handle = server.connect()
    fill(handle, 4 * MIB)
    handle.pwrite(noise("refused", BLOCK), 0)
    faulty.fail(faulty.writes)
    expect_error(errno.EIO, handle.flush)
    assert "commits-fail" in pages(server), pages(server)
    faulty.is_well()
    handle.flush()
    comes_to(server, "commits-fail")
    server.restart()
    assert pages(server) == []
    assert server.connect().pread(BLOCK, 0) == noise("refused", BLOCK)


@cache_only
@limit(90)
def test_cache_without_space(t):
    """The file system under a sparse cache is full: that is said, also by the next start, which
    does not call the cache lost. All flushed is there when there is space."""
    (device,), cache = t.devices(256 * MIB), Faulty(t, "cache", 64 * MIB, "ENOSPC")
    server = t.serve([device], "--cache", cache.path, start=False)
    t.forebay("create", "--device", device, "--copies", "1", "--cache", cache.path)
    server.start()
    server.volume("create", "vol0", "--size", "64M")
    handle = server.connect()
    fill(handle, 4 * MIB)
    cache.fail(cache.writes)
    expect_error(errno.ENOSPC, lambda: handle.pwrite(noise("late", BLOCK), 0))
    comes_to(server, "cache-without-space")
    cache.is_well()
    # The first may need no space; ten seconds later it is believed that there is some.
    handle.pwrite(noise("late", BLOCK), 0)
    comes_to(server, "cache-without-space")
    time.sleep(10)
    handle.pwrite(noise("late", BLOCK), 0)
    comes_to(server)
    handle.pwrite(noise("later", BLOCK), 0)
    cache.fail(cache.writes)
    expect_error(errno.EIO, handle.flush)
    comes_to(server, "cache-failed")
    assert "free space there" in t.forebay("status", "--socket", server.control).stdout
    server.kill()
    text = t.refused(*server.command, saying=("free space there",))
    assert "--forget-cache" not in text, text
    cache.is_well()
    server.start()
    assert pages(server) == []
    assert server.connect().pread(MIB, MIB) == noise(("states", MIB), MIB)


@pool_only
@limit(90)
def test_pool_failed(t):
    """A flush fails of the only device: reads go on, and what was flushed before is there."""
    unflushed = Unflushed(t, "unflushed", 96 * MIB)
    server = pool(t, [unflushed.path], 1)
    handle = server.connect()
    fill(handle, MIB)
    unflushed.fails.touch()
    handle.pwrite(noise("late", BLOCK), 2 * MIB)
    expect_error(errno.EIO, handle.flush)
    comes_to(server, "pool-failed")
    assert server.status()["pool"]["state"] == "failed"
    assert handle.pread(MIB, 0) == noise(("states", 0), MIB)
    unflushed.fails.unlink()
    server.kill()
    server.start()
    assert pages(server) == []
    assert server.connect().pread(MIB, 0) == noise(("states", 0), MIB)


def read_until(end, handle, seed):
    places = random.Random(seed)
    while not end.is_set():
        handle.pread(BLOCK, places.randrange(0, 8 * MIB, BLOCK))


@pool_only
@limit(120)
def test_device_silent(t):
    """One of a mirror does not answer. Out of use, nothing waits for it any more; it comes back
    when it has answered what it was asked."""
    still = Still(t, "still", 128 * MIB)
    (other,) = t.devices(128 * MIB)
    server = pool(t, [still.path, other], 2)
    t.later(still.go_on)
    handle = server.connect()
    fill(handle, MIB)
    still.stop()
    ended = []
    block = nbd.Buffer.from_bytearray(bytearray(noise("silent", BLOCK)))
    handle.aio_pwrite(block, 0, completion=lambda _: ended.append(0) or 1)
    handle.poll(0)
    flush = server.connect()
    flush.aio_flush(completion=lambda _: ended.append(1) or 1)
    flush.poll(0)
    comes_to(server, "device-silent", seconds=60)
    assert ended == []
    device(t, server, "offline", still.path)
    for waits in (handle, flush):
        while waits.aio_in_flight():
            waits.poll(-1)
    assert sorted(ended) == [0, 1]
    later = server.connect()
    later.pwrite(noise("later", MIB), 32 * MIB)
    later.flush()
    assert later.pread(MIB, 32 * MIB) == noise("later", MIB)
    comes_to(server, "device-offline", "device-silent")
    words = ("device", "online", still.path, "--socket", server.control)
    refused = t.forebay(*words, ok=(1,)).stderr
    assert "has not answered yet what it was asked" in refused, refused
    still.go_on()
    comes_to(server, "device-offline")
    device(t, server, "online", still.path)
    comes_to(server)
    server.stop()
    server.devices = [still.path, other]
    server.check()


@pool_only
@limit(120)
def test_device_slow(t):
    """Its reads take many times as long as its mirror's, for half a minute: clients read the other
    copy from then on, and it still gets all writes. A new device in its place ends it."""
    good, slow = (
        FuseFile(t, name, 128 * MIB, ["delay"], [f"rdelay={delay}"])
        for name, delay in (("good", "0"), ("slow", "20ms"))
    )
    server = pool(t, [good.path, slow.path], 2)
    fill(server.connect(), 8 * MIB)
    # One alone only ever reads the first.
    found = threading.Event()
    readers = [
        threading.Thread(target=read_until, args=(found, server.connect(), seed))
        for seed in range(4)
    ]
    for reader in readers:
        reader.start()
    try:
        comes_to(server, "device-slow", seconds=90)
    finally:
        found.set()
        for reader in readers:
            reader.join()
    said = t.forebay("status", "--socket", server.control).stdout
    assert "slow: read only where it must be" in said, said
    handle = server.connect()
    begun = time.monotonic()
    for block in range(100):
        handle.pread(BLOCK, block * BLOCK)
    assert time.monotonic() - begun < 100 * 0.02, "the slow device is read"
    fill(handle, 8 * MIB, "later")
    (new,) = t.devices(128 * MIB)
    device(t, server, "replace", slow.path, new, "--wait")
    comes_to(server)
    server.stop()
    server.devices = [good.path, new]
    server.check()
