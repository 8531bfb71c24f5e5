"""A volume of which the pool cannot read the mapping: what clients see, what the others get, and
the way out."""

import errno

from harness.case import cache_only, limit
from harness.data import BLOCK, KIB, MIB, data_ranges, flip, noise
from harness.server import expect_error

SPREAD = 64 * KIB
PLACES = 512
MAPPING_OF_FIRST = 1 << 32 | 1


def lose_mapping(paths):
    """Damages all copies of the leaves of the first volume's mapping; returns how many."""
    lost = 0
    for path in paths:
        for start, end in data_ranges(path):
            with open(path, "rb") as file:
                file.seek(start)
                data = file.read(end - start)
            for at in range(0, len(data) - BLOCK + 1, BLOCK):
                tree, level = int.from_bytes(data[at + 16 : at + 24], "little"), data[at + 4]
                if tree == MAPPING_OF_FIRST and level == 0:
                    flip(path, start + at + 100)
                    lost += 1
    return lost


def scatter(server, export, seed):
    handle = server.connect(export)
    for place in range(PLACES):
        handle.pwrite(noise((seed, place), BLOCK), place * SPREAD)
    handle.flush()
    handle.shutdown()


@cache_only
@limit(120)
def test_others_go_on(t):
    server = t.up("--cache-size", "256M", size="1G", volume_size="64M")
    server.volume("create", "other", "--size", "64M")
    scatter(server, "vol0", "before")
    server.cache("flush")
    server.stop()
    assert lose_mapping(server.devices) >= 2
    server.start()
    scatter(server, "vol0", "after")
    scatter(server, "other", "after")
    text = t.refused(t.bin, "cache", "flush", "--socket", server.control)
    assert f"{PLACES} blocks of volume vol0 in the cache cannot come to the pool" in text, text
    assert "the mapping of volume vol0 cannot be read" in text, text
    text = t.refused(t.bin, "cache", "detach", "--socket", server.control)
    assert "The cache stays attached" in text or "cannot come to the pool" in text, text
    pages = [problem["page"] for problem in server.status()["health"]]
    assert "volume-unreachable" in pages and "writeback-fails" not in pages, pages
    text = t.forebay("status", "--socket", server.control).stdout
    assert "forebay volume delete vol0" in text, text
    assert "STAYS" in t.forebay("cache", "status", "--socket", server.control).stdout
    # The pool has all of the other one.
    server.cache("mode", "other", "none")
    handle = server.connect("other")
    for place in range(PLACES):
        assert handle.pread(BLOCK, place * SPREAD) == noise(("after", place), BLOCK), place
    handle.shutdown()
    # What was written is read from the cache, also after a kill.
    server.kill()
    server.start()
    handle = server.connect()
    for place in range(PLACES):
        assert handle.pread(BLOCK, place * SPREAD) == noise(("after", place), BLOCK), place
    expect_error(errno.EIO, lambda: handle.pread(BLOCK, BLOCK))
    handle.shutdown()
    server.volume("delete", "vol0")
    server.cache("flush")
    assert "volume-unreachable" not in [one["page"] for one in server.status()["health"]]
    server.stop()
    # A server cannot free what is below the lost nodes. A repair can.
    home = server.socket.parent
    text = t.run(t.bin, "check", home, ok=(3,)).stdout
    assert "forebay check --repair frees all that it held" in text, text
    text = t.forebay("check", "--repair", home).stdout
    assert "1 deleted volume forgotten" in text, text
    assert "that nothing refers to were freed" in text, text
    assert "clean" in t.forebay("check", "--data", home).stdout
    server.start()
    handle = server.connect("other")
    assert handle.pread(BLOCK, 7 * SPREAD) == noise(("after", 7), BLOCK)
    used = server.status()["pool"]["used_bytes"]
    assert used < 8 * MIB, used
