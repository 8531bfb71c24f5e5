"""Every NBD command and flag through libnbd's Python module."""

import threading

import nbd

from harness.case import limit
from harness.data import BLOCK, KIB, MIB, noise


def test_read_write_sizes(t):
    """Requests of every size from a sector to 32 MiB, at every alignment that a sector allows."""
    server = t.up(volume_size="256M")
    handle = server.connect()
    model = bytearray(160 * MIB)
    sizes = [
        512, 1024, 3584, 4096, 4608, 8192, 64 * KIB, 64 * KIB + 512, MIB, MIB - 512, 4 * MIB,
        32 * MIB,
    ]
    at = 0
    for number, size in enumerate(sizes):
        for shift in (0, 512, 3584):
            offset = at % (120 * MIB) // BLOCK * BLOCK + shift
            data = noise((number, shift), size)
            handle.pwrite(data, offset)
            model[offset : offset + size] = data
            assert handle.pread(size, offset) == data, (size, offset)
            at += size // 2 + 3 * BLOCK
    for offset in range(0, len(model), 32 * MIB):
        assert handle.pread(32 * MIB, offset) == model[offset : offset + 32 * MIB], offset
    handle.flush()
    server.restart()
    handle = server.connect()
    for offset in range(0, len(model), 16 * MIB):
        assert handle.pread(16 * MIB, offset) == model[offset : offset + 16 * MIB], offset


def test_every_flag(t):
    """FUA on everything that takes it, DF, NO_HOLE, FAST_ZERO, REQ_ONE."""
    server = t.up(volume_size="64M")
    handle = server.connect()
    for name in ("write", "flush", "fua", "trim", "zero", "fast_zero", "cache", "df", "multi_conn"):
        if name != "write":
            assert getattr(handle, f"can_{name}")(), f"cannot {name}"
    assert not handle.is_read_only()
    data = noise("flags", MIB)

    handle.pwrite(data, 0, flags=nbd.CMD_FLAG_FUA)
    assert handle.pread(MIB, 0) == data
    chunks = []
    handle.pread_structured(
        MIB,
        0,
        lambda buf, offset, status, error: chunks.append((offset, len(buf), status)),
        flags=nbd.CMD_FLAG_DF,
    )
    assert chunks == [(0, MIB, nbd.READ_DATA)], f"DF must give one chunk: {chunks}"

    handle.trim(64 * KIB, 0, flags=nbd.CMD_FLAG_FUA)
    assert handle.pread(64 * KIB, 0) == bytes(64 * KIB)
    handle.zero(64 * KIB, 64 * KIB, flags=nbd.CMD_FLAG_FUA | nbd.CMD_FLAG_NO_HOLE)
    handle.zero(64 * KIB, 128 * KIB, flags=nbd.CMD_FLAG_FAST_ZERO)
    handle.zero(512, 256 * KIB + 512)
    handle.cache(MIB, 0)
    wanted = bytearray(data)
    wanted[0 : 192 * KIB] = bytes(192 * KIB)
    wanted[256 * KIB + 512 : 256 * KIB + 1024] = bytes(512)
    assert handle.pread(MIB, 0) == wanted

    status = extents_of(handle, MIB, 0)
    assert status[0] == (64 * KIB, 3), f"trimmed space must be a hole: {status}"
    assert status[1][1] & nbd.STATE_HOLE == 0, f"NO_HOLE must leave space allocated: {status}"
    one = extents_of(handle, MIB, 0, nbd.CMD_FLAG_REQ_ONE)
    assert len(one) == 1 and one[0][0] <= MIB, f"REQ_ONE must give one extent: {one}"

    handle.flush()
    server.kill()
    server.start()
    handle = server.connect()
    assert handle.pread(MIB, 0) == wanted, "flushed, then lost"
    handle.shutdown()
    server.stop()
    server.check()


def extents_of(handle, length, offset, flags=0):
    """Block status as [(length, flags)] of base:allocation."""
    got = []

    def take(context, _offset, entries, _error):
        assert context == "base:allocation"
        got.extend(zip(entries[::2], entries[1::2]))

    handle.block_status(length, offset, take, flags=flags)
    return got


def test_fua_survives_a_kill(t):
    """A write with FUA is durable by itself, and so are zeroes and trims with FUA."""
    server = t.up(volume_size="64M")
    handle = server.connect()
    handle.pwrite(b"\x11" * MIB, 0)
    handle.flush()
    handle.pwrite(b"\x22" * 4096, 0, flags=nbd.CMD_FLAG_FUA)
    server.kill()
    server.start()
    handle = server.connect()
    assert handle.pread(4096, 0) == b"\x22" * 4096
    handle.zero(4096, 8192, flags=nbd.CMD_FLAG_FUA)
    server.kill()
    server.start()
    handle = server.connect()
    assert handle.pread(4096, 8192) == bytes(4096)
    assert handle.pread(4096, 4096) == b"\x11" * 4096
    handle.pwrite(b"\x33" * 512, MIB - 512, flags=nbd.CMD_FLAG_FUA)
    server.kill()
    server.start()
    handle = server.connect()
    assert handle.pread(1024, MIB - 1024) == b"\x11" * 512 + b"\x33" * 512


def test_zeroes_of_large_ranges(t):
    """Trim and write-zeroes have no payload, so they may be far larger than a read or write."""
    server = t.up(volume_size="8G")
    handle = server.connect()
    data = noise("zeroes", MIB)
    places = [0, 1 << 30, (3 << 30) - MIB // 2, (4 << 30) - MIB]
    for place in places:
        handle.pwrite(data, place)
    handle.zero(2 << 30, 0)
    handle.trim(1 << 30, 3 << 30)
    assert handle.pread(MIB, places[0]) == bytes(MIB)
    assert handle.pread(MIB, places[1]) == bytes(MIB)
    assert handle.pread(MIB, places[2]) == data[: MIB // 2] + bytes(MIB // 2)
    assert handle.pread(MIB, places[3]) == bytes(MIB)
    handle.flush()
    assert server.status()["volumes"][0]["allocated_bytes"] <= MIB


def test_simple_replies_and_old_options(t):
    """Clients without structured replies, and those that still use EXPORT_NAME."""
    server = t.up(volume_size="64M")
    handle = server.connect(structured=False)
    assert not handle.get_structured_replies_negotiated()
    data = noise("simple", 2 * MIB)
    handle.pwrite(data, MIB)
    assert handle.pread(4 * MIB, 0) == bytes(MIB) + data + bytes(MIB)
    handle.zero(MIB, MIB)
    handle.trim(MIB, 2 * MIB)
    handle.flush()
    assert handle.pread(4 * MIB, 0) == bytes(4 * MIB)
    handle.shutdown()
    handle = server.connect(contexts=())
    assert handle.get_structured_replies_negotiated() and handle.pread(512, 0) == bytes(512)
    handle.shutdown()


def test_option_mode(t):
    """LIST, INFO, ABORT, then GO, on one connection."""
    server = t.up(volume_size="64M")
    server.volume("create", "other", "--size", "1G")
    handle = nbd.NBD()
    handle.set_opt_mode(True)
    handle.connect_unix(str(server.socket))
    names = []
    handle.opt_list(lambda name, _description: names.append(name))
    assert sorted(names) == ["other", "vol0"], names
    handle.set_export_name("other")
    handle.opt_info()
    assert handle.get_size() == 1 << 30
    handle.set_export_name("missing")
    try:
        handle.opt_info()
        raise AssertionError("info of an unknown export succeeded")
    except nbd.Error:
        pass
    handle.set_export_name("vol0")
    handle.opt_go()
    assert handle.get_size() == 64 * MIB and handle.pread(512, 0) == bytes(512)
    handle.shutdown()
    handle = nbd.NBD()
    handle.set_opt_mode(True)
    handle.connect_unix(str(server.socket))
    handle.opt_abort()


@limit(90)
def test_multi_conn(t):
    """What one connection has written every other one reads, and a flush on one covers them all,
    through a kill."""
    server = t.up(volume_size="256M")
    handles = [server.connect() for _ in range(8)]
    assert all(handle.can_multi_conn() for handle in handles)
    for number, handle in enumerate(handles):
        handle.pwrite(noise(number, 64 * KIB), number * MIB)
        assert handles[(number + 3) % 8].pread(64 * KIB, number * MIB) == noise(number, 64 * KIB)

    failures = []

    def work(number):
        try:
            for step in range(60):
                data = noise((number, step), 16 * KIB)
                offset = 16 * MIB + (number * 60 + step) * 16 * KIB
                handles[number].pwrite(data, offset)
                if handles[(number + 1) % 8].pread(16 * KIB, offset) != data:
                    failures.append(
                        f"connection {number}, step {step}: stale read on another connection"
                    )
        except Exception as error:
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[:5]
    handles[5].flush()
    server.kill()
    server.start()
    handle = server.connect()
    for number in range(8):
        assert handle.pread(64 * KIB, number * MIB) == noise(number, 64 * KIB), (
            f"connection {number}"
        )
        for step in range(60):
            assert handle.pread(16 * KIB, 16 * MIB + (number * 60 + step) * 16 * KIB) == noise(
                (number, step), 16 * KIB
            )


def test_many_in_flight_on_one_connection(t):
    """Hundreds of requests at once, answered in any order; overlapping sub-block writes leave every
    sector whole."""
    server = t.up(volume_size="64M")
    handle = server.connect()
    buffers = [nbd.Buffer.from_bytearray(bytearray(noise(number, 512))) for number in range(512)]
    cookies = [
        handle.aio_pwrite(buffers[number], (number * 7 % 512) * 512) for number in range(512)
    ]
    wait_all(handle, cookies)
    for number in range(512):
        assert handle.pread(512, (number * 7 % 512) * 512) == noise(number, 512), number
    # Eight writers of the same 64 KiB: afterwards each block is one of theirs, whole.
    same = [nbd.Buffer.from_bytearray(bytearray([number + 1]) * (64 * KIB)) for number in range(8)]
    wait_all(handle, [handle.aio_pwrite(buffer, MIB) for buffer in same])
    got = handle.pread(64 * KIB, MIB)
    for at in range(0, len(got), BLOCK):
        assert got[at] in range(1, 9) and got[at : at + BLOCK] == bytes([got[at]]) * BLOCK, (
            f"torn block at {at}"
        )


def wait_all(handle, cookies):
    waiting = set(cookies)
    while waiting:
        handle.poll(-1)
        waiting = {cookie for cookie in waiting if not handle.aio_command_completed(cookie)}


def test_many_connections(t):
    """A hundred connections, each of which works."""
    server = t.up(volume_size="64M")
    handles = [server.connect() for _ in range(100)]
    for number, handle in enumerate(handles):
        handle.pwrite(bytes([number + 1]) * 4096, number * 4096)
    for number, handle in enumerate(reversed(handles)):
        assert handle.pread(4096, number * 4096) == bytes([number + 1]) * 4096
    for handle in handles:
        handle.shutdown()
