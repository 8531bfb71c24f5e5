"""A device that stands still holds up nobody who does not need it. It is a file of nbdfuse, over
nbdkit with a filter that stops its requests."""

import nbd

from harness.case import limit, pool_only
from harness.data import MIB, noise
from harness.fuse import Still

# Reads at once: more than FUSE takes, so the thread that asks for the next one has to wait.
ASKED = 64


def around_a_stop(t, *io):
    device = Still(t, "fuse", 1024 * MIB)
    t.forebay("create", "--device", device.path, "--copies", "1")
    server = t.serve([device.path], *io)
    server.volume("create", "vol0", "--size", "512M")
    old, new = noise("old", ASKED * MIB), noise("new", 64 * MIB)
    pieces = range(0, 64 * MIB, MIB)
    handle = server.connect()
    for at in pieces:
        handle.pwrite(old[at : at + MIB], at)
    server.stop()
    # Nothing of it is in this cache.
    server = t.serve([device.path], "--cache", t.dir / "cache.img", "--cache-size", "256M", *io)
    reader, writer = server.connect(), server.connect()
    # Where it is must be known, or all reads wait for the same node of a tree.
    for at in pieces:
        reader.pread(4096, at)
    places = [at + MIB // 2 for at in pieces]
    found = {}
    device.stop()
    try:
        for place in places:
            ask(reader, place, found)
        while reader.aio_get_direction() & nbd.AIO_DIRECTION_WRITE:
            reader.poll(100)
        for at in pieces:
            writer.pwrite(new[at : at + MIB], 256 * MIB + at)
            writer.flush()
        assert writer.pread(MIB, 256 * MIB) == new[:MIB]
        assert server.status()["volumes"][0]["name"] == "vol0"
        reader.poll(0)
        assert not found, f"{len(found)} reads of a device that stands still have ended"
    finally:
        device.go_on()
    while len(found) < ASKED:
        reader.poll(1000)
    assert found == {place: old[place : place + 4096] for place in places}
    server.restart()
    handle = server.connect()
    assert all(handle.pread(MIB, 256 * MIB + at) == new[at : at + MIB] for at in pieces)
    server.stop()
    server.check()


def ask(reader, place, found):
    """Reads a block; what it holds, or the error, is found when it has come."""
    buffer = nbd.Buffer(4096)

    def done(error):
        found[place] = error or bytes(buffer.to_bytearray())
        return 1

    reader.aio_pread(buffer, place, completion=done)


@pool_only
@limit(120)
def test_pool_stands_still(t):
    """Reads that miss the cache wait; writes to the cache, their flushes, reads of it and the
    command do not."""
    around_a_stop(t)


@pool_only
@limit(120)
def test_pool_stands_still_without_io_uring(t):
    around_a_stop(t, "--io", "posix")
