"""Devices that lie, vanish and come back: right data or an error, never wrong data, and the pool
says what happened."""

import errno
import fcntl
import json
import os
import random
import re
import shutil
import socket
import time

import nbd

from clients.cache import content, device_words
from clients.set import wait_for
from harness.case import cache_only, limit, pool_only
from harness.data import BLOCK, GIB, KIB, MIB, data_ranges, find_blocks, flip, noise
from harness.server import expect_error

BLOCKS = 4096  # 16 MiB


def fill(server, export="vol0", blocks=BLOCKS, seed="fill"):
    """Writes blocks that can be found again in the device files; returns them."""
    handle = server.connect(export)
    written = {number: noise((seed, number), BLOCK) for number in range(blocks)}
    for first in range(0, blocks, 64):
        handle.pwrite(
            b"".join(written[number] for number in range(first, min(first + 64, blocks))),
            first * BLOCK,
        )
    handle.flush()
    handle.shutdown()
    return written


def verify(server, written, export="vol0", step=64):
    handle = server.connect(export)
    wrong = []
    for first in range(0, len(written), step):
        count = min(step, len(written) - first)
        data = handle.pread(count * BLOCK, first * BLOCK)
        for number in range(count):
            if data[number * BLOCK : (number + 1) * BLOCK] != written[first + number]:
                wrong.append(first + number)
    handle.shutdown()
    assert not wrong, f"{len(wrong)} blocks are wrong: {wrong[:10]}"


def pool_state(server):
    pool = server.status()["pool"]
    return pool["state"], {
        os.path.basename(one["path"]): one["state"] for one in pool["devices"] if one["path"]
    }


@pool_only
@limit(90)
def test_data_flipped_in_one_copy(t):
    """Served right, healed, counted; after that the other copy can be lost."""
    server = t.up(volume_size="64M", size="1G")
    written = fill(server)
    server.stop()
    rng = random.Random(1)
    where = find_blocks(server.devices[0], written)
    assert len(where) == BLOCKS, (
        f"only {len(where)} of {BLOCKS} blocks stand in {server.devices[0].name}"
    )
    chosen = rng.sample(range(BLOCKS), 300)
    for number in chosen:
        flip(server.devices[0], where[number] + rng.randrange(BLOCK), 1 << rng.randrange(8))
    assert server.check(ok=(4,)).stdout, "check --data must find this and say so"
    server.start()
    # Reads are spread over the copies, so it takes some rounds, of other sizes each, until every
    # bad one was met.
    for _ in range(40):
        verify(server, written, step=rng.randrange(5, 64))
        if server.device_errors()["healed"] >= len(chosen):
            break
    errors = server.device_errors()
    assert errors["checksum"] >= len(chosen) and errors["healed"] >= len(chosen), errors
    handle = server.connect()
    handle.flush()
    server.stop()
    server.check()
    server.devices[1].unlink()
    server.start()
    verify(server, written)


@limit(90)
def test_random_bytes_flipped_in_one_device(t):
    """Anywhere in one device, metadata too: superblocks, pages, nodes."""
    for victim in (0, 1):
        server = t.up(volume_size="64M", size="1G", directory=f"data{victim}")
        written = fill(server)
        server.stop()
        rng = random.Random(2 + victim)
        ranges = data_ranges(server.devices[victim])
        for _ in range(400):
            start, end = rng.choice(ranges)
            flip(server.devices[victim], rng.randrange(start, end), 1 << rng.randrange(8))
        # The beginning holds what the pool is known by.
        for offset in range(0, 8 * KIB, 97):
            flip(server.devices[victim], offset)
        server.start()
        verify(server, written)
        handle = server.connect()
        handle.pwrite(noise("more", MIB), 32 * MIB)
        handle.flush()
        assert handle.pread(MIB, 32 * MIB) == noise("more", MIB)
        server.restart()
        verify(server, written)
        server.stop()


@pool_only
@limit(90)
def test_data_flipped_in_both_copies(t):
    """No good copy: an I/O error to that request alone, never wrong data, until it is written
    again."""
    server = t.up(volume_size="64M", size="1G")
    written = fill(server)
    server.stop()
    rng = random.Random(3)
    bad = sorted(rng.sample(range(BLOCKS), 40))
    for device in server.devices:
        where = find_blocks(device, {number: written[number] for number in bad})
        assert len(where) == len(bad), f"{device.name} has {len(where)} of {len(bad)}"
        for number in bad:
            flip(device, where[number] + rng.randrange(BLOCK), 1 << rng.randrange(8))
    server.check(ok=(3,))
    server.start()
    handle = server.connect()
    for number in range(BLOCKS):
        if number in bad:
            expect_error(errno.EIO, lambda: handle.pread(BLOCK, number * BLOCK))
        else:
            assert handle.pread(BLOCK, number * BLOCK) == written[number], number
    number = bad[7]
    expect_error(errno.EIO, lambda: handle.pread(MIB, number * BLOCK // MIB * MIB))
    plain = server.connect(structured=False)
    expect_error(errno.EIO, lambda: plain.pread(BLOCK, number * BLOCK))
    # A write of part of a bad block cannot know the rest of it.
    expect_error(errno.EIO, lambda: handle.pwrite(bytes(512), number * BLOCK))
    expect_error(errno.EIO, lambda: handle.pread(BLOCK, number * BLOCK))
    errors = server.device_errors()
    assert errors["checksum"] >= len(bad), errors
    for number in bad:
        handle.pwrite(written[number], number * BLOCK)
    handle.flush()
    verify(server, written)
    server.stop()
    server.check()


@pool_only
@limit(90)
def test_one_copy_has_no_mercy(t):
    """A pool of one copy detects what it cannot heal."""
    devices = t.devices(GIB)
    t.forebay("create", "--device", devices[0], "--copies", "1")
    server = t.serve(devices)
    server.volume("create", "vol0", "--size", "64M")
    written = fill(server, blocks=512)
    server.stop()
    where = find_blocks(devices[0], written)
    assert len(where) == 512
    flip(devices[0], where[100] + 5)
    server.start()
    handle = server.connect()
    expect_error(errno.EIO, lambda: handle.pread(BLOCK, 100 * BLOCK))
    assert handle.pread(BLOCK, 101 * BLOCK) == written[101]
    server.stop()
    server.check(ok=(3,))


@limit(90)
def test_device_deleted_while_serving(t):
    """Goes on serving; after a restart it opens degraded and says so, data right, and takes
    writes."""
    for victim in (0, 1):
        server = t.up(volume_size="64M", size="1G", directory=f"data{victim}")
        written = fill(server)
        server.devices[victim].unlink()
        verify(server, written)
        handle = server.connect()
        handle.pwrite(noise("later", MIB), 32 * MIB)
        handle.flush()
        handle.shutdown()
        server.stop()
        server.start()
        verify(server, written)
        handle = server.connect()
        assert handle.pread(MIB, 32 * MIB) == noise("later", MIB)
        state, _ = pool_state(server)
        assert state == "degraded", state
        missing = f"device {victim} of the pool"
        said = server.says(missing, "is missing: the pool is degraded", "Serving").count(missing)
        handle.pwrite(noise("degraded", MIB), 40 * MIB)
        handle.flush()
        server.kill()
        server.start()
        handle = server.connect()
        assert handle.pread(MIB, 40 * MIB) == noise("degraded", MIB)
        verify(server, written)
        server.stop()
        # The end waits for all that was said.
        assert server.log_text().count(missing) == 2 * said, "each start says it"


@limit(90)
def test_stale_device_comes_back(t):
    """A device that missed writes is not read before it has them; then the other one may go."""
    server = t.up(volume_size="64M", size="1G")
    old = fill(server, seed="old")
    server.stop()
    server.devices[1].rename(t.dir / "away")
    server.start()
    new = fill(server, seed="new")
    scrub = ("scrub", "start", "--wait", "--socket", server.control)
    report = t.forebay(*scrub, ok=(5,)).stdout
    assert "does not count as complete" in report and "last complete" not in report, report
    assert "was not there" in t.forebay("status", "--socket", server.control).stdout
    server.stop()
    (t.dir / "away").rename(server.devices[1])
    server.start()
    assert old[0] != new[0]
    for _ in range(3):
        verify(server, new)
    deadline = time.monotonic() + 30
    while (found := pool_state(server)) != (
        "online",
        {"pool0.img": "online", "pool1.img": "online"},
    ):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    assert "last complete" in t.forebay(*scrub).stdout
    handle = server.connect()
    handle.pwrite(noise("more", MIB), 32 * MIB)
    handle.flush()
    server.kill()
    server.devices[0].rename(t.dir / "away")
    server.start()
    verify(server, new)
    assert server.connect().pread(MIB, 32 * MIB) == noise("more", MIB)


@limit(60)
def test_halves_that_went_apart(t):
    """Two halves that were each written without the other are refused, by name. The cache goes with
    the one that it was used with last."""
    server = t.up(volume_size="64M", size="1G")
    fill(server, blocks=64)
    server.stop()
    first, second = server.devices
    for device, other in ((first, second), (second, first)):
        other.rename(t.dir / "away")
        if t.cached and device == second:
            t.refused(*server.command, saying=("without the other", "older than the cache"))
            (t.dir / "away").rename(other)
            server.start()
            verify(server, written)
            return
        server.start()
        written = fill(server, blocks=64, seed=device.name)
        server.stop()
        (t.dir / "away").rename(other)
    text = t.refused(*server.command, timeout=30)
    assert "pool0.img" in text or "pool1.img" in text, "the message must name a device"
    said = text.strip().splitlines()[-1].removeprefix("forebay: ")
    assert any(one in said for one in doctor(t, server.socket.parent, 3)), (
        "doctor must say the same"
    )


@limit(60)
def test_foreign_device(t):
    """A device of another pool in the place of ours is refused by name or left out, and is not
    touched."""
    server = t.up(volume_size="64M", size="1G")
    written = fill(server, blocks=256)
    server.stop()
    other = t.up(volume_size="64M", size="1G", directory="other")
    foreign = fill(other, blocks=256, seed="foreign")
    other.stop()
    server.devices[1].rename(t.dir / "away")
    shutil.copy(other.devices[1], server.devices[1])
    server.spawn()
    try:
        server.process.wait(5)
    except Exception:
        verify(server, written)
        assert pool_state(server)[0] == "degraded"
        server.stop()
    log = server.log_text()
    assert "pool0.img" in log or "pool1.img" in log, (
        "the log must name a device that does not belong to the other"
    )
    os.replace(server.devices[1], other.devices[1])
    other.start()
    verify(other, foreign)
    other.stop()
    other.check()
    (t.dir / "away").rename(server.devices[1])
    server.start()
    verify(server, written)


@limit(90)
def test_a_device_that_was_overwritten(t):
    """It counts as missing: the pool is served without it and says so, `doctor` too, nothing is
    written to it, and it can be filled again. One too many is refused."""
    server = t.up(volume_size="64M", size="1G")
    written = fill(server)
    server.stop()
    home, second = server.socket.parent, server.devices[1]
    with open(second, "r+b") as file:
        file.truncate(0)
        file.truncate(GIB)
    found = doctor(t, "--device", server.devices[0], 3)
    assert any("2 devices, and 1 of them is named" in text for text in found), found
    found = doctor(t, home, 3)
    assert any("pool1.img: not a device of a Forebay pool" in text for text in found), found
    report = t.forebay("check", home, ok=(5,)).stdout
    assert (
        "only what the other devices hold was checked" in report and "NOT ALL WAS CHECKED" in report
    ), report
    server.start()
    wait_for(
        lambda: re.search("WARNING: .*pool1.img: not a device of a Forebay", server.log_text()), 5
    )
    assert pool_state(server)[0] == "degraded"
    verify(server, written)
    assert not data_ranges(second), "something was written to it"
    (missing,) = [
        one["id"] for one in server.status()["pool"]["devices"] if one["state"] == "missing"
    ]
    # The path is spelled in another way than on the list of devices.
    other = f"{home}/./{second.name}"
    t.forebay("device", "replace", missing, other, "--wait", "--socket", server.control)
    assert pool_state(server) == ("online", {"pool0.img": "online", "pool1.img": "online"})
    listed = json.loads((home / "devices.json").read_text())
    assert sorted(one["path"] for one in listed) == ["pool0.img", "pool1.img"], listed
    server.stop()
    # Servers before this one left the row of the old device there.
    (home / "devices.json").write_text(json.dumps([*listed, {"id": missing, "path": second.name}]))
    server.devices[0].unlink()
    server.start()
    verify(server, written)
    server.stop()
    # Of two empty ones, only one can be in the place of the one that is missing.
    words = [
        word for path in (server.devices[1], *t.devices(GIB, GIB)) for word in ("--device", path)
    ]
    if server.cache_file():
        words += ["--cache", server.cache_file()]
    text = t.refused(
        t.bin, "serve", *words, "--nbd-socket", t.dir / "n", "--socket", t.dir / "c",
        saying=("not a device",),
    )
    said = text.strip().splitlines()[-1].removeprefix("forebay: ")
    assert any(one in said for one in doctor(t, *words, 3)), said


@cache_only
def test_all_devices_that_were_overwritten(t):
    """Neither `up` nor `doctor` takes a directory whose devices are empty for a new one."""
    server = t.up(volume_size="64M", size="1G")
    server.stop()
    home = server.socket.parent
    for device in server.devices:
        with open(device, "r+b") as file:
            file.truncate(0)
            file.truncate(GIB)
    (text,) = (one for one in doctor(t, home, 3) if "holds anything of a pool" in one)
    said = t.refused(*server.command, saying=("holds anything of a pool any more", "overwritten"))
    assert text in said and "forebay create" not in said, said
    assert not data_ranges(server.devices[0]), "something was written to it"


def doctor(t, *words):
    """What `forebay doctor` finds that is a problem."""
    *words, status = words
    found = json.loads(t.run(t.bin, "doctor", *words, "--json", ok=(status,)).stdout)
    return [one["found"] for one in found if one["level"] == "problem"]


@limit(60)
def test_three_devices(t):
    """Unequal devices, two copies: all space that pairs can give, and any one of them may be
    lost."""
    devices = t.devices(GIB, GIB // 2, GIB // 2)
    t.forebay("create", *[word for device in devices for word in ("--device", device)])
    server = t.serve(devices)
    pool = server.status()["pool"]
    assert pool["copies"] == 2 and len(pool["devices"]) == 3
    assert 900 * MIB <= pool["capacity_bytes"] <= GIB, pool["capacity_bytes"]
    server.volume("create", "vol0", "--size", "2G")
    written = fill(server)
    server.stop()
    # What the cache has seen of the pool, an older copy of the pool alone would lack.
    files = [*devices, *(path for path in [devices[0].with_suffix(".cache")] if path.exists())]
    for lost in devices:
        copies = [t.dir / f"copy-{file.name}" for file in files]
        for file, copy in zip(files, copies):
            t.run("cp", "--sparse=always", file, copy)
        lost.unlink()
        server.start()
        verify(server, written)
        assert pool_state(server)[0] == "degraded"
        server.stop()
        for file, copy in zip(files, copies):
            os.replace(copy, file)
    server.start()
    verify(server, written)
    assert pool_state(server)[0] != "degraded"


@cache_only
@limit(60)
def test_a_half_that_was_left_behind(t):
    """The pool went on without a device, and the cache has seen that: the device alone is refused,
    and nothing is changed by it."""
    devices = t.devices(GIB, GIB)
    t.forebay("create", *[word for device in devices for word in ("--device", device)])
    server = t.serve(devices)
    server.volume("create", "vol0", "--size", "256M")
    fill(server)
    server.settle()
    server.stop()
    devices[1].rename(t.dir / "away")
    server.start()
    written = fill(server, seed="later")
    server.settle()
    server.stop()
    (t.dir / "away").rename(devices[1])
    devices[0].rename(t.dir / "away")
    cache = devices[0].with_suffix(".cache")
    words = ("--device", devices[1], "--cache", cache)
    for _ in range(2):
        assert any("older than the cache" in text for text in doctor(t, *words, 3))
        t.refused(
            t.bin, "serve", *words, "--nbd-socket", t.dir / "n", "--socket", t.dir / "c",
            saying=("older than the cache", "start with all", "--forget-cache"),
        )
    check = t.run(t.bin, "check", *words, ok=(3,))
    assert "older than the cache" in check.stdout + check.stderr, check
    (t.dir / "away").rename(devices[0])
    server.start()
    verify(server, written)


@cache_only
@limit(90)
def test_a_start_that_is_refused_changes_no_device(t):
    """Half of a mirror that is refused, whatever for, has not gone on alone: afterwards the other
    half goes on, and both are one pool."""
    devices = t.devices(GIB, GIB)
    t.forebay("create", *device_words(devices))
    server = t.serve(devices)
    server.volume("create", "vol0", "--size", "256M")
    fill(server)
    server.settle()
    server.stop()
    cache, good = devices[0].with_suffix(".cache"), t.dir / "good"
    t.run("cp", "--sparse=always", cache, good)
    before = content(devices[1])

    def refused(*saying, also=(), cache=cache, nbd=t.dir / "n"):
        t.refused(
            t.bin, "serve", "--device", devices[1], "--cache", cache, "--nbd-socket", nbd,
            "--socket", t.dir / "c", *also, saying=saying,
        )
        assert content(devices[1]) == before, saying

    os.truncate(cache, 20 * MIB)
    refused("the cache needs")
    t.run("cp", "--sparse=always", good, cache)
    with open(cache, "r+b") as file:
        # The bucket table, and what follows.
        file.seek(80 * KIB)
        file.write(noise("damage", 512 * KIB))
    refused("cannot be opened")
    t.run("cp", "--sparse=always", good, cache)
    with open(cache, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused("in use by another process")
    cache.chmod(0o400)
    if not os.access(cache, os.W_OK):
        refused("denied")
    cache.chmod(0o600)
    refused("not a directory", nbd=good / "n")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused("in use", also=("--http-listen", f"127.0.0.1:{taken.getsockname()[1]}"))
    refused("not a directory", also=("--http-listen", f"unix:{good}/http"))

    devices[1].rename(t.dir / "away")
    server.start()
    written = fill(server, seed="later")
    server.stop()
    (t.dir / "away").rename(devices[1])
    server.start()
    verify(server, written)


@limit(60)
def test_every_block_of_a_device_damaged(t):
    """A device whose superblocks are intact and of which nothing else is: its pool still opens,
    serves and takes writes."""
    server = t.up(volume_size="64M", size="1G")
    written = fill(server, blocks=1024)
    server.stop()
    rng = random.Random(9)
    with open(server.devices[1], "r+b") as file:
        for start, end in data_ranges(server.devices[1]):
            start = max(start, 4 * MIB)
            for at in range(start - start % BLOCK, end, BLOCK):
                if at >= start:
                    file.seek(at + rng.randrange(BLOCK - 16))
                    file.write(rng.randbytes(16))
    server.start()
    verify(server, written)
    handle = server.connect()
    try:
        handle.pwrite(noise("on", MIB), 32 * MIB)
        handle.flush()
    except nbd.Error as error:
        raise AssertionError(f"writes must go on: {error}") from None
    server.kill()
    server.start()
    verify(server, written)
    assert server.connect().pread(MIB, 32 * MIB) == noise("on", MIB)
