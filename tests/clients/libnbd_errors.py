"""What a server must refuse, and bytes that no decent client sends: the protocol's error or a
closed connection, nothing else."""

import errno
import os
import random
import struct
import time

import nbd

from harness.data import MIB, noise
from harness.server import expect_error

SIZE = 64 * MIB
OPTION_MAGIC = 0x49484156454F5054
REQUEST_MAGIC = 0x25609513
(
    OPT_EXPORT_NAME, OPT_ABORT, OPT_LIST, OPT_STARTTLS, OPT_INFO, OPT_GO, OPT_STRUCTURED,
    OPT_LIST_META, OPT_SET_META,
) = 1, 2, 3, 5, 6, 7, 8, 9, 10


def test_out_of_range_and_misaligned(t):
    """Errors that leave the connection usable, with and without structured replies."""
    server = t.up(volume_size="64M")
    for structured in (True, False):
        handle = server.connect(structured=structured, strict=False)
        past_end = (errno.EINVAL, errno.ENOSPC)
        expect_error(errno.EINVAL, lambda: handle.pread(4096, SIZE))
        expect_error(errno.EINVAL, lambda: handle.pread(8192, SIZE - 4096))
        expect_error(errno.EINVAL, lambda: handle.pread(512, (1 << 63) - 512))
        expect_error(past_end, lambda: handle.pwrite(bytes(4096), SIZE))
        expect_error(past_end, lambda: handle.pwrite(bytes(8192), SIZE - 4096))
        expect_error(past_end, lambda: handle.zero(8192, SIZE - 4096))
        expect_error(past_end, lambda: handle.trim(1 << 31, SIZE - 4096))
        if handle.get_block_size(nbd.SIZE_MINIMUM) > 1:
            expect_error(errno.EINVAL, lambda: handle.pread(100, 0))
            expect_error(errno.EINVAL, lambda: handle.pread(512, 17))
            expect_error(errno.EINVAL, lambda: handle.pwrite(bytes(513), 0))
            expect_error(errno.EINVAL, lambda: handle.zero(512, 1))
        expect_error(errno.EINVAL, lambda: handle.pread(512, 0, flags=1 << 9))
        assert handle.pread(4096, SIZE - 4096) == bytes(4096), "the connection must go on"
        handle.pwrite(bytes(512), 0)


def test_too_long(t):
    """Nobody makes the server allocate what a header asks for."""
    server = t.up(volume_size="8G")
    bare = go(greet(server.raw()), b"vol0")
    request(bare, 0, 0, 0xFFFF_F000)
    answer, _closed = drain(bare)
    assert answer == b"" or struct.unpack(">I", answer[4:8])[0] in (
        errno.EINVAL,
        errno.EOVERFLOW,
    ), answer[:32]
    bare = go(greet(server.raw()), b"vol0")
    request(bare, 1, 0, 0xFFFF_F000)
    try:
        bare.sendall(bytes(MIB))
    except OSError:
        pass
    bare.close()
    assert server.memory_peak_bytes() < 200 * MIB
    assert server.connect().pread(512, 0) == bytes(512)


def test_vanishing_clients(t):
    """Clients that go away in the middle of anything cost nothing."""
    server = t.up(volume_size="64M")
    descriptors = count_descriptors(server)
    for number in range(60):
        bare = server.raw()
        if number % 6 > 0:
            go(greet(bare), b"vol0")
        if number % 6 == 2:
            request(bare, 1, 0, MIB)
            bare.sendall(bytes(1000))
        elif number % 6 == 3:
            for at in range(16):
                request(bare, 0, at * MIB, MIB)
        elif number % 6 == 4:
            request(bare, 1, 0, 4096)
            bare.sendall(noise(number, 4096))
            request(bare, 3, 0, 0)
        elif number % 6 == 5:
            bare.sendall(b"\x25\x60\x95")
        bare.close()
    handle = server.connect()
    assert handle.pread(512, SIZE - 512) == bytes(512)
    handle.flush()
    assert server.memory_peak_bytes() < 200 * MIB
    handle.shutdown()
    assert count_descriptors(server) <= descriptors + 4, "descriptors leak"


def count_descriptors(server):
    # The server sees the end of a connection a moment after it happened.
    time.sleep(0.5)
    return len(os.listdir(f"/proc/{server.pid}/fd"))


def test_nonsense(t):
    """Wrong magic, unknown options, options with hostile lengths, unknown commands, pure noise."""
    server = t.up(volume_size="64M")
    bare = greet(server.raw())
    option(bare, 4242, b"what")
    assert reply_of(bare)[1] == 0x8000_0001, "an unknown option is unsupported"
    option(bare, OPT_LIST, b"must be empty")
    assert reply_of(bare)[1] == 0x8000_0003, "LIST with data is invalid"
    option(bare, OPT_INFO, struct.pack(">I", 0xFFFF_FFFF) + b"x")
    assert reply_of(bare)[1] & 0x8000_0000, "a name longer than its option is invalid"
    option(bare, OPT_SET_META, b"\0\0\0\4vol0" + struct.pack(">I", 0xFFFF_FFFF))
    assert reply_of(bare)[1] & 0x8000_0000, "more queries than bytes, or without structured replies"
    option(bare, OPT_STARTTLS, b"")
    assert reply_of(bare)[1] & 0x8000_0000, "there is no TLS"
    bare = go(bare, b"vol0")
    request(bare, 99, 0, 512)
    assert simple_error(bare) == errno.EINVAL, "an unknown command is invalid"
    request(bare, 0, 0, 512)
    assert simple_error(bare) == 0 and len(take(bare, 512)) == 512

    bare = greet(server.raw())
    bare.sendall(struct.pack(">QII", OPTION_MAGIC, OPT_LIST, 0xFFFF_FFFF))
    assert drain(bare)[1] or server.memory_peak_bytes() < 200 * MIB
    bare = greet(server.raw())
    bare.sendall(b"\0" * 64)
    assert drain(bare)[1], "a wrong option magic must close the connection"
    bare = go(greet(server.raw()), b"vol0")
    bare.sendall(b"\0" * 280)
    assert drain(bare)[1], "a wrong request magic must close the connection"
    rng = random.Random(7)
    for number in range(200):
        bare = server.raw()
        try:
            if number % 2:
                go(greet(bare), b"vol0")
            bare.sendall(rng.randbytes(rng.randrange(1, 4000)))
        except OSError:
            pass
        bare.close()
    assert server.connect().pread(512, 0) == bytes(512)
    assert server.memory_peak_bytes() < 200 * MIB


def test_export_name(t):
    """The oldest way in: no reply but the export itself, with and without 124 zeros; an unknown
    name closes."""
    server = t.up(volume_size="64M")
    for no_zeroes in (False, True):
        bare = greet(server.raw(), flags=3 if no_zeroes else 1)
        option(bare, OPT_EXPORT_NAME, b"vol0")
        size, flags = struct.unpack(">QH", take(bare, 10))
        assert size == SIZE and flags & 1, (size, flags)
        if not no_zeroes:
            assert take(bare, 124) == bytes(124)
        request(bare, 0, 0, 512)
        assert simple_error(bare) == 0 and len(take(bare, 512)) == 512
        request(bare, 2, 0, 0)
        assert drain(bare) == (b"", True)
    bare = greet(server.raw())
    option(bare, OPT_EXPORT_NAME, b"missing")
    assert drain(bare) == (b"", True)


# A client of a few lines, which sends anything.


def greet(bare, flags=3):
    magic, option_magic, _server_flags = struct.unpack(">QQH", take(bare, 18))
    assert magic == 0x4E42444D41474943 and option_magic == OPTION_MAGIC
    bare.sendall(struct.pack(">I", flags))
    return bare


def option(bare, number, payload):
    bare.sendall(struct.pack(">QII", OPTION_MAGIC, number, len(payload)) + payload)


def reply_of(bare):
    magic, number, kind, length = struct.unpack(">QIII", take(bare, 20))
    assert magic == 0x3E889045565A9
    return number, kind, take(bare, length)


def go(bare, name):
    """Through GO into transmission, with simple replies."""
    option(bare, OPT_GO, struct.pack(">I", len(name)) + name + b"\0\0")
    while True:
        _, kind, _ = reply_of(bare)
        assert kind & 0x8000_0000 == 0, f"GO refused: {kind:#x}"
        if kind == 1:
            return bare


def request(bare, command, offset, length, flags=0, cookie=1):
    bare.sendall(struct.pack(">IHHQQI", REQUEST_MAGIC, flags, command, cookie, offset, length))


def simple_error(bare):
    magic, error, _cookie = struct.unpack(">IIQ", take(bare, 16))
    assert magic == 0x67446698
    return error


def take(bare, length):
    got = b""
    while len(got) < length:
        more = bare.recv(length - len(got))
        assert more, f"closed after {len(got)} of {length} bytes"
        got += more
    return got


def drain(bare):
    """What still comes until the server closes, and whether it closed within two seconds."""
    got, closed = b"", True
    bare.settimeout(2)
    try:
        while more := bare.recv(65536):
            got += more
    except TimeoutError:
        closed = False
    except ConnectionResetError:
        pass
    bare.close()
    return got, closed
