"""`forebay scrub`: what rots is healed before it is needed, what is lost is named, and a scrub
survives restarts and kills."""

import errno
import json
import os
import pathlib
import random
import re
import time

from harness.case import Skip, limit, pool_only
from harness.data import BLOCK, MIB, data_ranges, find_blocks, flip, noise
from harness.server import expect_error


BLOCKS = 4096  # 16 MiB


def fill(server):
    """Writes blocks that can be found again in the device files; returns them."""
    handle = server.connect()
    written = {number: noise(("scrub", number), BLOCK) for number in range(BLOCKS)}
    for first in range(0, BLOCKS, 64):
        handle.pwrite(
            b"".join(written[number] for number in range(first, first + 64)), first * BLOCK
        )
    handle.flush()
    return written


def verify(server, written):
    handle = server.connect()
    for first in range(0, BLOCKS, 64):
        assert handle.pread(64 * BLOCK, first * BLOCK) == b"".join(
            written[number] for number in range(first, first + 64)
        ), first


class Scrub:
    """`forebay scrub` of one server."""

    def __init__(self, t, server):
        self.t = t
        self.server = server

    def __call__(self, *words, ok=(0,)):
        return self.t.forebay("scrub", *words, "--socket", self.server.control, ok=ok).stdout

    def status(self):
        return json.loads(self("status", "--json"))

    def ended(self, seconds=60):
        deadline = time.monotonic() + seconds
        while "running" in (
            (status := self.status())["state"],
            (status["cache"] or {}).get("state"),
        ):
            assert time.monotonic() < deadline, status
            time.sleep(0.05)
        return status


@pool_only
@limit(90)
def test_rot_is_healed_and_the_other_copy_may_go(t):
    """Data, nodes and pages of one device; found without a client's read."""
    server = t.up(volume_size="64M", size="1G")
    scrub = Scrub(t, server)
    assert "never" in scrub("status")
    assert "scrub " not in t.forebay("status", "--socket", server.control).stdout
    written = fill(server)
    text = scrub("start", "--wait")
    assert "done" in text and "no errors" in text, text
    server.stop()
    rng = random.Random(1)
    for start, end in data_ranges(server.devices[0]):
        for offset in range(max(start, MIB), end, 2 * BLOCK):
            flip(server.devices[0], offset + rng.randrange(BLOCK), 1 << rng.randrange(8))
    server.start()
    text = scrub("start", "--wait")
    assert "done" in text and "data" in text and "node" in text, text
    status = scrub.status()
    assert status["bad"] == status["healed"] > BLOCKS // 4 and status["lost"] == 0, status
    assert server.device_errors()["healed"] >= status["healed"]
    assert f"{status['healed']} healed" in t.forebay("status", "--socket", server.control).stdout
    scrub("start", "--wait")
    assert scrub.status()["bad"] == 0
    server.stop()
    server.check()
    server.devices[1].unlink()
    server.start()
    verify(server, written)


@pool_only
@limit(90)
def test_lost_blocks_are_named_until_they_are_written(t):
    """In the status, by volume and offset, with an exit status of its own; over a restart."""
    server = t.up(volume_size="64M", size="1G")
    scrub = Scrub(t, server)
    written = fill(server)
    server.stop()
    bad = [100, 101, 102, 3000]
    for device in server.devices:
        where = find_blocks(device, {number: written[number] for number in bad})
        for number in bad:
            flip(device, where[number] + 7)
    server.start()
    text = scrub("start", "--wait", ok=(3,))
    assert "no copy of these is good" in text and "vol0" in text, text
    server.says("no copy of a block of a volume is good", "volume=vol0")
    server.restart()
    status = scrub.status()
    named = sorted(
        (lost["volume"], lost["offset"], lost["length"]) for lost in status["lost_blocks"]
    )
    assert named == [("vol0", 100 * BLOCK, 3 * BLOCK), ("vol0", 3000 * BLOCK, BLOCK)], status
    assert "BLOCKS ARE LOST" in t.forebay("status", "--socket", server.control).stdout
    handle = server.connect()
    expect_error(errno.EIO, lambda: handle.pread(BLOCK, 101 * BLOCK))
    handle.pwrite(written[101], 101 * BLOCK)
    handle.trim(BLOCK, 3000 * BLOCK)
    handle.flush()
    lost = scrub.status()["lost_blocks"]
    assert sorted((one["offset"] // BLOCK, one["length"]) for one in lost) == [
        (100, BLOCK),
        (102, BLOCK),
    ], lost
    for number in (100, 102):
        handle.pwrite(written[number], number * BLOCK)
    handle.flush()
    scrub("start", "--wait")
    assert scrub.status()["lost_blocks"] == [] and scrub.status()["bad"] == 0


@pool_only
@limit(90)
def test_what_a_client_met_is_told_until_it_is_mended(t):
    """A block without a good copy, by the read that met it; a device on which many have rotted."""
    server = t.up("--commit-interval", "200ms", volume_size="64M", size="1G")
    scrub = Scrub(t, server)
    written = fill(server)
    server.stop()
    lost, rotten = 77, range(1000, 1040)
    for at, device in enumerate(server.devices):
        where = find_blocks(device, {number: written[number] for number in (lost, *rotten)})
        for number in (lost, *rotten) if at == 0 else (lost,):
            flip(device, where[number] + 7)
    server.start()
    status = lambda: t.forebay("status", "--socket", server.control).stdout
    health = lambda: [
        problem["page"]
        for problem in json.loads(t.forebay("status", "--json", "--socket", server.control).stdout)[
            "health"
        ]
    ]
    assert health() == []
    handle = server.connect()
    expect_error(errno.EIO, lambda: handle.pread(BLOCK, lost * BLOCK))
    assert health() == ["blocks-lost"] and "blocks of volumes have no good copy" in status()
    server.restart()
    assert health() == ["blocks-lost"]
    handle = server.connect()
    handle.pwrite(written[lost], lost * BLOCK)
    handle.flush()
    assert health() == []
    scrub("start", "--wait")
    assert health() == ["device-rots"]
    assert f"{server.devices[0]}: 40 blocks were not what was written" in status(), status()
    scrub("start", "--wait")
    assert health() == []


@limit(90)
def test_pause_resume_cancel_and_kill(t):
    """At a rate, under writes; it goes on where it was after kill -9."""
    server = t.up("--commit-interval", "200ms", volume_size="256M", size="1G")
    scrub = Scrub(t, server)
    handle = server.connect()
    for at in range(0, 128 * MIB, MIB):
        handle.pwrite(noise(("scrub", at), MIB), at)
    handle.flush()
    if t.cached:
        t.forebay("cache", "flush", "--socket", server.control)
    scrub("start", "--rate", "16M")
    t.refused(t.bin, "scrub", "start", "--socket", server.control, saying=("runs already",))
    time.sleep(2)
    scrub("pause")
    paused = scrub.status()
    assert paused["state"] == "paused" and 0 < paused["verified_bytes"] < paused["all_bytes"], (
        paused
    )
    assert "paused at" in t.forebay("status", "--socket", server.control).stdout
    part = lambda status: status["cache"] and status["cache"]["state"]
    assert part(paused) == ("paused" if t.cached else None), paused
    scrub("resume", "--rate", "24M")
    for i in range(200):
        handle.pwrite(noise(("more", i), BLOCK), i * 7919 % 32768 * BLOCK)
    handle.flush()
    time.sleep(1)
    server.kill()
    server.start()
    status = scrub.status()
    assert (
        status["state"] in ("running", "done") and status["started_at"] == paused["started_at"]
    ), status
    status = scrub.ended()
    assert status["state"] == "done" and status["bad"] == 0, status
    text = scrub("start", "--wait")
    status = scrub.status()
    assert part(status) == ("done" if t.cached else None), status
    assert ("cache " in text) == t.cached, text
    scrub("start", "--rate", "1M")
    time.sleep(1.5)
    assert scrub.status()["rate_limit"] == MIB
    scrub("cancel")
    status = scrub.status()
    assert status["state"] == "cancelled" and part(status) in (None, "cancelled"), status
    t.refused(t.bin, "scrub", "resume", "--socket", server.control, saying=("no scrub is paused",))
    t.refused(
        t.bin, "scrub", "start", "--device", "nothing", "--socket", server.control,
        saying=("no device of this pool", "pool0.img"),
    )
    scrub("start", "--device", server.devices[0], "--wait")
    status = scrub.status()
    assert "pool0.img" in str(status["device"]) and part(status) in (None, "cancelled"), status


@limit(60)
def test_how_much_is_left_while_the_pool_grows(t):
    """More is written while it runs: it says how much there is to verify then, not at its start."""
    server = t.up("--commit-interval", "200ms", volume_size="512M", size="1G")
    scrub = Scrub(t, server)
    handle = server.connect()

    def write(first, last):
        for at in range(first * MIB, last * MIB, MIB):
            handle.pwrite(noise(("grows", at), MIB), at)
        handle.flush()
        if t.cached:
            t.forebay("cache", "flush", "--socket", server.control)

    write(0, 24)
    scrub("start", "--rate", "12M")
    begin = scrub.status()
    assert 48 * MIB <= begin["all_bytes"] < 64 * MIB, begin
    write(24, 96)
    grown, share = scrub.status(), lambda s: s["verified_bytes"] / s["all_bytes"]
    assert 180 * MIB < grown["all_bytes"] < 216 * MIB and share(grown) < 0.7, grown
    deadline, cache = time.monotonic() + 40, grown["cache"]
    while (status := scrub.status())["state"] == "running":
        assert time.monotonic() < deadline, status
        assert 180 * MIB < status["all_bytes"] < 216 * MIB, status
        time.sleep(0.2)
    assert status["verified_bytes"] == status["all_bytes"] > 180 * MIB, status
    if t.cached:
        assert begin["cache"]["all_bytes"] < 26 * MIB and cache["all_bytes"] > 48 * MIB, cache
        scrub.ended()


@pool_only
@limit(90)
def test_the_same_damage_as_btrfs(t):
    """One byte of each of these blocks in one copy, here and in kernel btrfs: both find and heal
    them all, and read right without the other copy."""
    t.need("mkfs.btrfs", "losetup", "mount")
    if (
        "btrfs" not in pathlib.Path("/proc/filesystems").read_text()
        or not pathlib.Path("/dev/loop-control").exists()
    ):
        raise Skip("this machine's kernel has no btrfs, or forbids loop devices")
    root = t.as_root()
    server = t.up(volume_size="64M", size="1G")
    written = fill(server)
    server.stop()
    images, loops = t.devices(512 * MIB, 512 * MIB), []
    mounted = t.dir / "btrfs"
    mounted.mkdir()

    def attach():
        for image in images:
            loops.append(t.run(*root, "losetup", "--find", "--show", image).stdout.strip())

    def detach():
        if os.path.ismount(mounted):
            t.run(*root, "umount", mounted)
        while loops:
            t.run(*root, "losetup", "--detach", loops.pop())

    t.later(detach)
    attach()
    t.run(*root, "mkfs.btrfs", "-q", "-f", "-d", "raid1", "-m", "raid1", *loops)
    t.run(*root, "mount", "-o", f"device={loops[1]}", loops[0], mounted)
    (mounted / "data").write_bytes(b"".join(written[number] for number in range(BLOCKS)))
    detach()

    hit = range(0, BLOCKS, 16)
    for device in (server.devices[1], images[1]):
        where = find_blocks(device, {number: written[number] for number in hit})
        for number in hit:
            flip(device, where[number] + 100)

    server.start()
    text = Scrub(t, server)("start", "--wait")
    status = Scrub(t, server).status()
    assert status["bad"] == status["healed"] == len(hit) and status["lost"] == 0, status
    attach()
    t.run(*root, "mount", "-o", f"device={loops[1]}", loops[0], mounted)
    theirs = t.run(*root, "btrfs", "scrub", "start", "-B", "-R", mounted, ok=(0, 3)).stdout
    numbers = dict(re.findall(r"(\w+): (\d+)", theirs))
    assert int(numbers["csum_errors"]) == int(numbers["corrected_errors"]) == len(hit), theirs
    print("--- forebay", text, "--- btrfs", theirs, sep="\n")
    detach()
    server.stop()
    for device in (server.devices[1], images[1]):
        assert sorted(find_blocks(device, {number: written[number] for number in hit})) == list(
            hit
        ), device
