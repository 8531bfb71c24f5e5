"""Random requests of every kind on several connections, against a model in memory, through restarts
and kills."""

import random

import nbd

from harness.case import limit
from harness.data import KIB, MIB

SIZE = 48 * MIB
SECTOR = 512


class Model:
    """What the volume must hold."""

    def __init__(self, size):
        self.now = bytearray(size)

    def write(self, offset, data):
        self.now[offset : offset + len(data)] = data


def step(rng, handles, model):
    handle = rng.choice(handles)
    sectors = rng.choice([1, 1, 2, 3, 7, 8, 8, 9, 16, 33, 128, 500, 2048])
    # Half of the requests meet in a small region, so that they overlap often.
    space = (MIB if rng.random() < 0.5 else SIZE) // SECTOR
    sectors = min(sectors, space)
    offset = rng.randrange(space - sectors + 1) * SECTOR
    length = sectors * SECTOR
    fua = nbd.CMD_FLAG_FUA if rng.random() < 0.05 else 0
    kind = rng.choices(
        ["write", "read", "trim", "zero", "zero_no_hole", "fast_zero", "flush", "cache", "status"],
        [40, 35, 6, 5, 3, 2, 2, 2, 5],
    )[0]
    if kind == "write":
        data = rng.randbytes(length)
        handle.pwrite(data, offset, flags=fua)
        model.write(offset, data)
    elif kind == "read":
        got = handle.pread(length, offset)
        assert got == model.now[offset : offset + length], f"read of {length} at {offset}"
    elif kind in ("zero", "zero_no_hole", "fast_zero"):
        flag = {
            "zero": 0,
            "zero_no_hole": nbd.CMD_FLAG_NO_HOLE,
            "fast_zero": nbd.CMD_FLAG_FAST_ZERO,
        }[kind]
        try:
            handle.zero(length, offset, flags=fua | flag)
            model.write(offset, bytes(length))
        except nbd.Error as error:
            # FAST_ZERO may be refused, and then must have changed nothing.
            assert kind == "fast_zero" and error.errno == "EOPNOTSUPP", error
    elif kind == "trim":
        trim(handle, model, offset, length, fua)
    elif kind == "flush":
        handle.flush()
    elif kind == "cache":
        handle.cache(length, offset)
    else:
        holes_read_as_zeros(handle, model, offset, length)


def trim(handle, model, offset, length, flags):
    """What a trim leaves is the server's choice, sector by sector the old bytes or zeros; it must
    stay what it is."""
    handle.trim(length, offset, flags=flags)
    got = handle.pread(length, offset)
    for at in range(0, length, SECTOR):
        sector = got[at : at + SECTOR]
        old = model.now[offset + at : offset + at + SECTOR]
        assert sector == old or not any(sector), (
            f"sector at {offset + at} is neither old nor zero after a trim"
        )
    model.write(offset, got)


def holes_read_as_zeros(handle, model, offset, length):
    entries = []
    handle.block_status(length, offset, lambda _context, _offset, got, _error: entries.extend(got))
    at = offset
    for size, flags in zip(entries[::2], entries[1::2]):
        end = min(at + size, len(model.now))
        if flags & nbd.STATE_ZERO:
            assert not any(model.now[at:end]), f"block status says zero at {at}, but it holds data"
        at += size
    assert at > offset


def compare(handle, model):
    for offset in range(0, SIZE, 4 * MIB):
        got = handle.pread(4 * MIB, offset)
        if got != model.now[offset : offset + 4 * MIB]:
            bad = next(
                at
                for at in range(0, 4 * MIB, SECTOR)
                if got[at : at + SECTOR] != model.now[offset + at : offset + at + SECTOR]
            )
            raise AssertionError(f"the volume differs from the model at {offset + bad}")


@limit(150)
def test_random_requests(t):
    """Twelve lives of the server, each ended by a flush and then a clean stop or a kill."""
    rng = random.Random(20)
    model = Model(SIZE)
    server = t.up(volume_size="48M", size="2G")
    for life in range(12):
        handles = [server.connect() for _ in range(3)]
        for _ in range(400):
            step(rng, handles, model)
        handles[0].flush()
        if life % 2:
            server.kill()
            server.check()
            server.start()
        else:
            server.restart()
        compare(server.connect(), model)
    server.stop()
    server.check()


@limit(60)
def test_sectors_of_4096(t):
    """A volume whose sector is the block: said to the client, smaller requests refused, bytes
    right."""
    server = t.up(volume_size="64M")
    server.volume("create", "native", "--size", "64M", "--sector", "4096")
    handle = server.connect("native", strict=False)
    assert handle.get_block_size(nbd.SIZE_MINIMUM) == 4096
    data = random.Random(3).randbytes(256 * KIB)
    handle.pwrite(data, 4096)
    assert handle.pread(256 * KIB, 4096) == data
    for action in (
        lambda: handle.pwrite(bytes(512), 0),
        lambda: handle.pread(4096, 512),
        lambda: handle.zero(512, 4096),
    ):
        try:
            action()
            raise AssertionError("a request smaller than the sector was taken")
        except nbd.Error as error:
            assert error.errno == "EINVAL", error
    handle.flush()
    server.restart()
    assert server.connect("native").pread(256 * KIB, 4096) == data
    t.run(
        "qemu-io", "-f", "raw", "-c", "write -P 5 512 512", "-c", "read -P 5 512 512",
        server.uri("native"),
    )
