"""What the shim (shim.c) writes down about the devices, and how faults are ordered from it.

The log is a file in memory that the shim maps: a page of control, then records in the order of
their times. It survives the process that wrote it, so the record of a life that was ended by kill
-9 is complete, and the next life goes on behind it.
"""

import mmap
import os
import pathlib
import struct
import subprocess

from ..case import Skip

MAGIC = 0x31474F4C4B434F4C
LOG_BYTES = 1 << 30
CONTROL_BYTES = 4096
MAX_DEVICES = 4
PAGE = 4096
HEAD = struct.Struct("<QQQQ 4I 4I 4Q")
FAULTS = struct.Struct("<6IQ")
BAD = struct.Struct("<Ii QQ")
RECORD = struct.Struct("<II QQQQ q Q")
WRITE_BEGIN, WRITE_END, FLUSH_BEGIN, FLUSH_END, ZERO_BEGIN = range(1, 6)
MASK = (1 << 64) - 1
# How a write ended.
DONE, NOT_DONE = 0, -5


def shim(directory):
    """The compiled shim. Compiled again where the source is newer."""
    source = pathlib.Path(__file__).with_name("shim.c")
    library = pathlib.Path(directory) / "crash-shim.so"
    if library.exists() and library.stat().st_mtime_ns > source.stat().st_mtime_ns:
        return library
    made = library.with_suffix(f".{os.getpid()}")
    flags = "-O2 -Wall -Wextra -shared -fPIC".split()
    command = ["cc", *flags, "-o", str(made), str(source), "-ldl", "-lpthread"]
    try:
        subprocess.run(command, check=True)
    except FileNotFoundError:
        raise Skip(
            "there is no C compiler (cc) for what stands between the server and its devices"
        ) from None
    made.rename(library)
    return library


def mix(value):
    value = (value + 0x9E3779B97F4A7C15) & MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def is_lost(seed, percent, device, page):
    """Whether a failed flush has lost this page; the shim decides the same."""
    return mix(seed ^ mix((device << 56) ^ page)) % 100 < percent


class Recording:
    """The log of some devices, which must be files that exist."""

    def __init__(self, path, library, devices):
        self.path = pathlib.Path(path)
        self.library = library
        self.devices = [pathlib.Path(device) for device in devices]
        assert len(self.devices) <= MAX_DEVICES
        fresh = not self.path.exists()
        with open(self.path, "a+b") as file:
            if fresh:
                file.truncate(LOG_BYTES)
            self.map = mmap.mmap(file.fileno(), 0)
        if fresh:
            HEAD.pack_into(self.map, 0, MAGIC, LOG_BYTES, CONTROL_BYTES, 0, *[0] * 12)

    def close(self):
        self.map.close()

    def environment(self):
        """With which a server is to be started."""
        return {
            "LD_PRELOAD": str(self.library),
            "FOREBAY_SHIM_LOG": str(self.path),
            "FOREBAY_SHIM_DEVICES": ":".join(map(str, self.devices)),
        }

    # Orders.

    def set(self, seed, recording=True, delay_us=0, revert=False, undo=False, lost_percent=0):
        _, size, tail, *_ = HEAD.unpack_from(self.map, 0)
        orders = (recording, delay_us, revert, undo, lost_percent)
        HEAD.pack_into(self.map, 0, MAGIC, size, tail, seed & MASK, *orders, *[0] * 7)

    def fail_flushes(self, device, after=1, count=1, below=0):
        """The flush number `after` from now, and those behind it, `count` in all; of those that
        cover a write below `below`, if that is given.
        """
        old = FAULTS.unpack_from(self.map, HEAD.size + device * FAULTS.size)
        FAULTS.pack_into(self.map, HEAD.size + device * FAULTS.size, after, count, *old[2:6], below)

    def fail_writes(self, device, after=1, count=1, done=False):
        old = FAULTS.unpack_from(self.map, HEAD.size + device * FAULTS.size)
        FAULTS.pack_into(
            self.map, HEAD.size + device * FAULTS.size, *old[:2], after, count, done, 0, old[6]
        )

    def bad_sectors(self, number, device, offset, length, times=-1):
        """Reads that touch this range fail, so many times or until it is written."""
        at = HEAD.size + MAX_DEVICES * FAULTS.size + number * BAD.size
        BAD.pack_into(self.map, at, device, times, offset, length)

    def failed(self):
        """How many flushes, writes and reads have failed."""
        return HEAD.unpack_from(self.map, 0)[9:12]

    # What was recorded.

    def tail(self):
        return HEAD.unpack_from(self.map, 0)[2]

    def records(self, upto_ns=None):
        """(kind, device, id, time, offset, length, result, where the data is in `map`), in
        order.
        """
        at, tail, size = CONTROL_BYTES, self.tail(), RECORD.size
        while at < tail:
            kind, device, number, time_ns, offset, length, result, bytes_ = RECORD.unpack_from(
                self.map, at
            )
            if upto_ns is not None and time_ns > upto_ns:
                return
            yield kind, device, number, time_ns, offset, length, result, at + size
            at += size + (bytes_ + 7 & ~7)

    def append(self, kind, device, number, time_ns, offset, length, result, data=b""):
        """Writes down what was found out about a device while no server runs."""
        tail = self.tail()
        RECORD.pack_into(
            self.map, tail, kind, device, number, time_ns, offset, length, result, len(data)
        )
        self.map[tail + RECORD.size : tail + RECORD.size + len(data)] = data
        struct.pack_into("<Q", self.map, 16, tail + RECORD.size + (len(data) + 7 & ~7))

    def settle_in_flight(self, time_ns):
        """After kill -9: what was in flight was done or not, as the device now shows; both ends
        are written down.
        """
        begun = {}
        for kind, device, number, _, offset, length, _, _ in self.records():
            if kind in (WRITE_BEGIN, ZERO_BEGIN):
                begun[number] = (device, offset, length)
            elif kind == WRITE_END:
                begun.pop(number, None)
        for number, (device, offset, length) in begun.items():
            self.append(WRITE_END, device, number, time_ns, offset, length, NOT_DONE)
            with open(self.devices[device], "rb") as file:
                file.seek(offset)
                found = file.read(length)
            fresh = number | 1 << 62
            self.append(WRITE_BEGIN, device, fresh, time_ns, offset, len(found), 0, found)
            self.append(WRITE_END, device, fresh, time_ns, offset, len(found), DONE)
        return len(begun)
