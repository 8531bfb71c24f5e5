"""The devices as a power cut may leave them, built from what was recorded.

Fault model: what a good flush has covered, that is, every write that had ended before the flush
began, is there. Of every other write, in flight or not, each sector of 512 bytes is there or not,
on its own; of several writes of a sector any one may be. What a failed flush has lost (shim.c)
never becomes durable.
"""

import os
import pathlib
import random

from ..data import data_ranges
from . import recording
from .recording import FLUSH_BEGIN, FLUSH_END, NOT_DONE, PAGE, WRITE_BEGIN, WRITE_END, ZERO_BEGIN

SECTOR = 512


class Write:
    """One write, or a part of it, that is not durable yet. Without `data` it writes zeros."""

    __slots__ = ("data", "ended", "flushed_itself", "length", "offset")

    def __init__(self, offset, length, data, flushed_itself):
        self.offset = offset
        self.length = length
        self.data = data
        self.ended = False
        self.flushed_itself = flushed_itself

    def part(self, start, end):
        """Of its bytes from `start` to `end`."""
        data = self.data and (self.data[0] + start, self.data[0] + end)
        one = Write(self.offset + start, end - start, data, self.flushed_itself)
        one.ended = self.ended
        return one


class Device:
    """What is durable of a device, and what is not yet."""

    def __init__(self, number, path):
        self.number = number
        self.file = os.open(path, os.O_RDWR)
        self.pending = {}
        self.covered = {}

    def put(self, log, write, start=0, end=None):
        """Makes (a part of) a write durable."""
        end = write.length if end is None else end
        data = (
            bytes(end - start)
            if write.data is None
            else log[write.data[0] + start : write.data[0] + end]
        )
        os.pwrite(self.file, data, write.offset + start)

    def apply(self, log, record):
        kind, _, number, _, offset, length, result, at = record
        if kind == WRITE_BEGIN:
            self.pending[number] = [Write(offset, length, (at, at + length), result == 1)]
        elif kind == ZERO_BEGIN:
            self.pending[number] = [Write(offset, length, None, False)]
        elif kind == WRITE_END:
            self.ended(log, number, result)
        elif kind == FLUSH_BEGIN:
            self.covered[number] = [
                key for key, parts in self.pending.items() if parts and parts[0].ended
            ]
        elif kind == FLUSH_END and result == 0:
            for key in self.covered.pop(number):
                for part in self.pending.pop(key, ()):
                    self.put(log, part)
        elif kind == FLUSH_END:
            self.covered.pop(number)
            self.lose(seed=offset, percent=length)

    def ended(self, log, number, result):
        if result == NOT_DONE:
            del self.pending[number]
            return
        for part in self.pending[number]:
            part.ended = True
        if self.pending[number][0].flushed_itself and result == 0:
            for part in self.pending.pop(number):
                self.put(log, part)

    def lose(self, seed, percent):
        """A flush has failed: by pages, what was not durable is lost for ever, or is as before."""
        for number, parts in list(self.pending.items()):
            if not parts or not parts[0].ended:
                continue
            left = []
            for part in parts:
                start = 0
                while start < part.length:
                    page = (part.offset + start) // PAGE
                    end = min(part.length, (page + 1) * PAGE - part.offset)
                    if not recording.is_lost(seed, percent, self.number, page):
                        left.append(part.part(start, end))
                    start = end
            self.pending[number] = left

    def cut(self, log, rng):
        """The power goes: some of what was not durable is there. Returns how many writes that
        concerned.
        """
        share = rng.choice([0, 0.1, 0.5, 0.5, 0.9, 1])
        by_sector = rng.random() < 0.6
        for parts in self.pending.values():
            whole = rng.random() < share
            for part in parts:
                if not by_sector:
                    if whole:
                        self.put(log, part)
                    continue
                for start in range(0, part.length, SECTOR):
                    if rng.random() < share:
                        self.put(log, part, start, min(start + SECTOR, part.length))
        return len(self.pending)


def copy_sparse(source, target):
    """A copy that has holes where the source has them."""
    size = os.stat(source).st_size
    with open(source, "rb") as old, open(target, "wb") as new:
        new.truncate(size)
        for start, end in data_ranges(source):
            at = start
            while at < end:
                done = os.copy_file_range(old.fileno(), new.fileno(), end - at, at, at)
                assert done > 0
                at += done


def build(log, before, upto_ns, seed, into):
    """The devices as they may be when the power goes at `upto_ns`. `before`: what they were when
    recording began.

    Returns the files, and the number of writes that were not durable.
    """
    rng = random.Random(f"image {seed}")
    paths = [pathlib.Path(into) / path.name for path in before]
    for path, target in zip(before, paths):
        copy_sparse(path, target)
    devices = [Device(number, path) for number, path in enumerate(paths)]
    for record in log.records(upto_ns):
        devices[record[1]].apply(log.map, record)
    pending = sum(device.cut(log.map, rng) for device in devices)
    for device in devices:
        os.close(device.file)
    return paths, pending
