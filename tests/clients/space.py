"""Space: out of it, given back, reserved, and volumes far larger than the pool."""

import errno
import json
import subprocess
import time

import nbd

from harness.case import limit, once
from harness.data import BLOCK, GIB, MIB, PIB, noise
from harness.server import expect_error


def write_until_full(handle, first=0, limit_bytes=4 * GIB):
    """Writes 1 MiB pieces until the pool refuses one; returns how many were taken."""
    count = 0
    while count * MIB < limit_bytes:
        got = 0
        try:
            handle.pwrite(noise(("full", first + count), MIB), (first + count) * MIB)
        except nbd.Error as error:
            got = error.errnum
            assert got == errno.ENOSPC, f"a full pool must say ENOSPC, not {error}"
        if got:
            return count
        count += 1
    raise AssertionError("the pool never filled")


def test_volumes_that_the_pool_does_not_have(t):
    """Made, and told: when they are made, by the status, and by the doctor, with a server and
    without."""
    server = t.up(volume_size="64M", size="1G")
    fits = server.volume("create", "small", "--size", "64M").stdout
    assert "the pool holds" not in fits, fits
    assert "the pool holds" not in t.forebay("status", "--socket", server.control).stdout
    said = server.volume("create", "large", "--size", "500T").stdout
    assert "large is made" in said and "the volumes have 500 TiB together" in said, said
    server.says("the volumes have 500 TiB together")
    shown = " ".join(t.forebay("status", "--socket", server.control).stdout.split())
    assert "the volumes have 500 TiB together, and the pool holds" in shown, shown
    assert server.status()["pool"]["provisioned_bytes"] == 500 * (1 << 40) + 128 * MIB
    doctor = ("doctor", server.devices[0].parent)
    for _ in ("with a server", "without"):
        told = " ".join(t.forebay(*doctor, ok=(0, 3)).stdout.split())
        assert "the volumes have 500 TiB together" in told, told
        if server.alive():
            server.stop()
    server.start()
    said = server.volume("resize", "large", "--size", "501T").stdout
    assert "the volumes have 501 TiB together" in said, said
    server.volume("delete", "large")
    assert "the pool holds" not in t.forebay("status", "--socket", server.control).stdout


@limit(180)
def test_full_pool(t):
    """ENOSPC at the write; everything acknowledged is right then, after a flush, after a kill;
    discarding makes room again."""
    server = t.up(volume_size="8G", size="320M")
    capacity = server.status()["pool"]["capacity_bytes"]
    handle = server.connect()
    count = write_until_full(handle)
    print(f"{count} MiB of a pool of {capacity // MIB} MiB")
    assert count * MIB > capacity * 3 // 4, "much of the pool was never usable"
    handle.flush()
    server.kill()
    server.start()
    handle = server.connect()
    for number in range(count):
        assert handle.pread(MIB, number * MIB) == noise(("full", number), MIB), number
    # A full pool still reads, flushes, trims; trimmed space comes back after a commit.
    for number in range(0, count, 2):
        handle.trim(MIB, number * MIB)
    handle.flush()
    again = write_with_patience(handle, count // 4)
    handle.flush()
    for number in range(1, count, 2):
        assert handle.pread(MIB, number * MIB) == noise(("full", number), MIB), number
    for number in range(again):
        assert handle.pread(MIB, (4000 + number) * MIB) == noise(("again", number), MIB), number
    server.stop()
    server.check()


def write_with_patience(handle, wanted):
    """Space that was freed may need a moment to be usable."""
    deadline = time.monotonic() + 15
    done = 0
    while done < wanted:
        try:
            handle.pwrite(noise(("again", done), MIB), (4000 + done) * MIB)
            done += 1
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC, error
            assert time.monotonic() < deadline, f"only {done} of {wanted} MiB came back"
            time.sleep(0.2)
    return done


@limit(120)
def test_overwriting_a_full_volume(t):
    """A volume that fits is overwritten again and again: copy-on-write must not run out of what it
    frees itself."""
    server = t.up(volume_size="96M", size="320M")
    handle = server.connect()
    for turn in range(8):
        for number in range(96):
            handle.pwrite(noise((turn, number), MIB), number * MIB)
        if turn % 3 == 0:
            handle.flush()
    for number in range(96):
        assert handle.pread(MIB, number * MIB) == noise((7, number), MIB), number
    handle.flush()
    server.stop()
    server.check()


@limit(90)
def test_a_volume_of_a_pebibyte(t):
    """On a small pool: written here and there to its very end, found again, cheap to describe,
    deletable."""
    server = t.up(volume_size="64M", size="1G")
    server.volume("create", "big", "--size", "1P")
    assert t.run("nbdinfo", "--size", server.uri("big")).stdout.strip() == str(PIB)
    handle = server.connect("big")
    places = [0, 4096 * 12345, GIB, 77 * (1 << 40) + 512, PIB // 2, PIB - MIB]
    for place in places:
        handle.pwrite(noise(place, MIB), place)
    handle.flush()
    server.kill()
    server.start()
    handle = server.connect("big")
    for place in places:
        assert handle.pread(MIB, place) == noise(place, MIB), place
    assert handle.pread(MIB, 200 << 40) == bytes(MIB)
    expect_error(errno.EINVAL, lambda: server.connect("big", strict=False).pread(512, PIB))
    # A trim of a huge hole costs next to nothing.
    began = time.monotonic()
    for number in range(200):
        handle.trim(2 * GIB, (300 << 40) + number * 2 * GIB)
    assert time.monotonic() - began < 10, "trimming holes must not walk them"
    handle.shutdown()
    server.volume("resize", "big", "--size", "2G", "--shrink")
    assert server.connect("big").pread(MIB, GIB) == noise(GIB, MIB)
    server.volume("delete", "big")
    server.stop()
    server.check()


@limit(120)
def test_deleting_gives_space_back(t):
    """In the background; the pool is as before, and again after a restart in the middle."""
    server = t.up(volume_size="64M", size="1G")
    empty = server.status()["pool"]["used_bytes"]
    for turn in range(2):
        server.volume("create", "gone", "--size", "1G")
        handle = server.connect("gone")
        for number in range(256):
            handle.pwrite(noise(number, MIB), number * MIB)
        handle.flush()
        server.settle()
        assert server.status()["pool"]["used_bytes"] >= empty + 256 * MIB
        handle.shutdown()
        server.volume("delete", "gone")
        assert "gone" not in [one["name"] for one in server.status()["volumes"]]
        if turn == 1:
            server.kill()
            server.start()
        deadline = time.monotonic() + 30
        while server.status()["pool"]["used_bytes"] > empty + 8 * MIB:
            assert time.monotonic() < deadline, "the space of a deleted volume did not come back"
            time.sleep(0.3)
    server.stop()
    server.check()


@limit(60)
def test_resize(t):
    """Growing keeps all; shrinking frees what is cut off; what was cut off reads as zeros when it
    grows again."""
    server = t.up(volume_size="64M", size="1G")
    handle = server.connect()
    data = noise("resize", 8 * MIB)
    handle.pwrite(data, 0)
    handle.pwrite(data, 56 * MIB)
    handle.flush()
    handle.shutdown()
    server.volume("resize", "vol0", "--size", "128M")
    handle = server.connect()
    assert handle.get_size() == 128 * MIB
    handle.pwrite(data, 120 * MIB)
    assert handle.pread(8 * MIB, 56 * MIB) == data
    handle.shutdown()
    said = server.volume("resize", "vol0", "--size", "60M", ok=(1,)).stderr
    assert "the last 68 MiB" in said and said.strip().endswith("--size 60M --shrink"), said
    [kept] = json.loads(server.volume("list", "--json").stdout)
    assert kept["size_bytes"] == 128 * MIB, "nothing is cut off without a word"
    server.volume("resize", "vol0", "--size", "60M", "--shrink")
    handle = server.connect(strict=False)
    assert handle.get_size() == 60 * MIB
    assert handle.pread(4 * MIB, 56 * MIB) == data[: 4 * MIB]
    expect_error(errno.EINVAL, lambda: handle.pread(BLOCK, 60 * MIB))
    handle.shutdown()
    server.kill()
    server.start()
    server.volume("resize", "vol0", "--size", "128M")
    handle = server.connect()
    assert handle.pread(8 * MIB, 56 * MIB) == data[: 4 * MIB] + bytes(4 * MIB)
    assert handle.pread(8 * MIB, 120 * MIB) == bytes(8 * MIB)
    assert handle.pread(8 * MIB, 0) == data
    handle.shutdown()
    server.restart()
    assert server.connect().get_size() == 128 * MIB
    server.stop()
    server.check()


@limit(60)
def test_zeroes_that_cannot_fit(t):
    """One request for more zeros than there is room for fails at once, and takes nothing from
    others."""
    server = t.up(volume_size="8G", size="512M")
    handle = server.connect()
    handle.pwrite(noise("there", 16 * MIB), 0)
    handle.flush()
    server.settle()
    before = server.status()["pool"]["used_bytes"]
    for length in (4 * GIB - MIB, 600 * MIB):
        expect_error(errno.ENOSPC, lambda: handle.zero(length, 0, nbd.CMD_FLAG_NO_HOLE))
    server.settle()
    assert server.status()["pool"]["used_bytes"] <= before + MIB
    handle.zero(64 * MIB, 0, nbd.CMD_FLAG_NO_HOLE)
    handle.zero(4 * GIB - MIB, 0)
    assert handle.pread(MIB, 0) == bytes(MIB)


@limit(120)
def test_a_small_pool_says_that_it_is_full(t):
    """Before the first write is refused."""
    server = t.up(volume_size="1G", size="256M")
    handle, full = server.connect(), []
    for at in range(0, 512 * MIB, MIB):
        try:
            handle.pwrite(noise(at, MIB), at)
            if at % (8 * MIB) == 0:
                handle.flush()
                server.settle()
        except nbd.Error as error:
            assert error.errnum == errno.ENOSPC, error
            break
        full = full or [p for p in server.status()["health"] if p["page"] == "pool-full"]
    else:
        raise AssertionError("the pool never filled")
    assert full and "are left for data" in full[0]["what"], full


@once
@limit(240)
def test_the_table_of_volumes(t):
    """It has room for 1008, which is told with what helps; a place is free again at once."""
    server = t.up(volume_size="16M", size="1G")
    made = subprocess.run(
        f"for n in $(seq 1007); do {t.bin} volume create v$n --size 1M --socket {server.control}"
        " >/dev/null || exit 1; done",
        shell=True, capture_output=True, text=True, check=False,
    )
    assert made.returncode == 0, made.stderr
    told = server.volume("create", "more", "--size", "1M", ok=(1,)).stderr
    assert "1008" in told and "delete a volume" in told and "device add" not in told, told
    handle = server.connect("v7")
    handle.pwrite(noise("v7", MIB), 0)
    handle.shutdown()
    for n in range(12):
        server.volume("delete", f"v{n + 7}")
        server.volume("create", f"again{n}", "--size", "1M")


@once
@limit(60)
def test_a_volume_gets_another_name(t):
    """Its content stays; who has it open is not put off unasked, and keeps it."""
    server = t.up(volume_size="16M", size="1G")
    handle = server.connect()
    data = noise("renamed", MIB)
    handle.pwrite(data, 0)
    told = server.volume("rename", "vol0", "disk", ok=(1,)).stderr
    assert "would not find it again" in told and "--force" in told, told
    server.volume("create", "other", "--size", "1M")
    told = server.volume("rename", "other", "vol0", ok=(1,)).stderr
    assert "already" in told, told
    server.volume("rename", "vol0", "disk", "--force")
    assert handle.pread(MIB, 0) == data
    told = server.volume("delete", "disk", ok=(1,)).stderr
    assert "open" in told, told
    handle.shutdown()
    server.restart()
    assert server.connect("disk").pread(MIB, 0) == data
    expect = server.volume("list").stdout
    assert "disk" in expect and "vol0" not in expect, expect
