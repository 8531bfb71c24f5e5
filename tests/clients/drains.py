"""A detach and a change of a mode before a slow disk, while a client writes as fast as it may."""

import os
import threading
import time

from harness.case import limit, once
from harness.data import MIB

SIZE = 1000 * MIB
DIRTY_S = 10
BLOCK = 4096


class Load(threading.Thread):
    """Requests of a volume, one after the other, at most so many a second; the longest of them."""

    def __init__(self, handle, size, rate, read=False):
        super().__init__()
        self.handle, self.size, self.rate, self.read = handle, size, rate, read
        self.over, self.longest, self.error = threading.Event(), 0.0, None

    def run(self):
        try:
            begun, n, data = time.monotonic(), 0, os.urandom(BLOCK)
            while not self.over.is_set():
                at = int.from_bytes(os.urandom(4), "little") % (self.size // BLOCK) * BLOCK
                since = time.monotonic()
                if self.read:
                    self.handle.pread(BLOCK, at)
                else:
                    self.handle.pwrite(data, at)
                self.longest = max(self.longest, time.monotonic() - since)
                n += 1
                time.sleep(max(0.0, begun + n / self.rate - time.monotonic()))
        except Exception as error:
            self.error = error


@once
@limit(300)
def test_others_hardly_notice(t):
    """Another volume waits for moments only, and the writers for no more than a small pass."""
    server = t.up(
        "--emulate", "hdd", "--cache-size", "1G", "--max-lag", "1h", size="2G",
        volume_size="1000M",
    )
    at = ("--socket", server.control)
    t.forebay("volume", "create", "v1", "--size", "40M", *at)
    t.forebay("cache", "mode", "v1", "writethrough", *at)
    t.forebay("set", "cache.dirty_target", "90", *at)
    for words in (("mode", "vol0", "writethrough"), ("mode", "vol0", "writeback"), ("detach",)):
        writers = [Load(server.connect(), SIZE, 1300) for _ in range(4)]
        # Never written: no device is asked.
        reader = Load(server.connect("v1"), 40 * MIB, 200, read=True)
        all_of_them = [*writers, reader]
        for load in all_of_them:
            load.start()
        time.sleep(DIRTY_S if "writeback" not in words else 1)
        for load in all_of_them:
            load.longest = 0.0
        since = time.monotonic()
        t.forebay("cache", *words, *at)
        took = time.monotonic() - since
        wrote, read = max(w.longest for w in writers), reader.longest
        for load in all_of_them:
            load.over.set()
        for load in all_of_them:
            load.join()
            assert load.error is None, load.error
        print(f"{words}: {took:.2f} s, longest write {wrote:.3f} s, read of v1 {read:.3f} s")
        if words[-1] != "writeback":
            assert read < 1, (words, took, read)
            assert wrote < max(2, took / 4), (words, took, wrote)
    server.stop()
