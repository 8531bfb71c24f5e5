"""The history of every block that a test writes, and what a block may hold after a crash.

Fault model: the server is killed at any moment. A block must then hold one of its past states,
whole, not older than the one that the last completed flush covers. What was in flight may be there
or not. A block is 4096 bytes, eight sectors; its state is a tuple with the stamp of each sector, 0
for zeros. A sector on the wire repeats (sector number, stamp), so that bytes from any other place
or time, or a mixture of two, are recognized.
"""

import random
import struct
import threading
import time

import nbd

BLOCK = 4096
SECTOR = 512
PER_BLOCK = BLOCK // SECTOR
CELL = struct.Struct("<QQ")
ZEROS = bytes(SECTOR)


def sector_bytes(number, stamp):
    return ZEROS if stamp == 0 else CELL.pack(number, stamp) * (SECTOR // CELL.size)


def stamp_of(number, data):
    """The stamp that a sector holds, or None if it holds what nobody wrote."""
    if data == ZEROS:
        return 0
    found, stamp = CELL.unpack_from(data)
    return stamp if found == number and data == sector_bytes(number, stamp) else None


class History:
    """States of the blocks of one volume. Each block has one writer at a time, so that its states
    have an order."""

    def __init__(self, blocks):
        self.states = [[(0,) * PER_BLOCK] for _ in range(blocks)]
        self.completed = [0] * blocks
        self.flushed = [0] * blocks
        self.stamp = 0
        self.flushes = 0
        self.lock = threading.Lock()

    def begin(self, sector, count, zero=False):
        """A write of whole sectors is about to be sent: its new states, and the bytes to send."""
        with self.lock:
            self.stamp += 1
            stamp = 0 if zero else self.stamp
            for block in range(sector // PER_BLOCK, (sector + count - 1) // PER_BLOCK + 1):
                state = list(self.states[block][-1])
                for at in range(PER_BLOCK):
                    if sector <= block * PER_BLOCK + at < sector + count:
                        state[at] = stamp
                self.states[block].append(tuple(state))
        return b"".join(sector_bytes(number, stamp) for number in range(sector, sector + count))

    def complete(self, sector, count):
        for block in range(sector // PER_BLOCK, (sector + count - 1) // PER_BLOCK + 1):
            self.completed[block] = len(self.states[block]) - 1

    def durable(self, sector, count):
        """The write itself was durable (FUA)."""
        self.complete(sector, count)
        for block in range(sector // PER_BLOCK, (sector + count - 1) // PER_BLOCK + 1):
            self.flushed[block] = max(self.flushed[block], self.completed[block])

    def flush(self, handle):
        """A flush covers what was complete when it was sent, on any connection."""
        covered = list(self.completed)
        handle.flush()
        with self.lock:
            self.flushed = [max(old, new) for old, new in zip(self.flushed, covered)]
            self.flushes += 1

    def verify(self, handle):
        """Reads every block, compares, and takes what is there as the state to go on from. Returns
        how many blocks held unflushed data."""
        newer = 0
        step = 256
        for first in range(0, len(self.states), step):
            count = min(step, len(self.states) - first)
            data = handle.pread(count * BLOCK, first * BLOCK)
            for block in range(first, first + count):
                at = (block - first) * BLOCK
                state = tuple(
                    stamp_of(
                        block * PER_BLOCK + number,
                        data[at + number * SECTOR : at + (number + 1) * SECTOR],
                    )
                    for number in range(PER_BLOCK)
                )
                allowed = self.states[block][self.flushed[block] :]
                assert state in allowed, (
                    f"block {block} holds {state}; flushed was {allowed[0]}, "
                    f"then {len(allowed) - 1} writes up to {allowed[-1]}, "
                    f"before that {self.states[block][: self.flushed[block]][-3:]}"
                )
                newer += state != allowed[0]
                self.states[block] = [state]
        self.completed = [0] * len(self.states)
        self.flushed = [0] * len(self.states)
        return newer


class Load:
    """Writers and flushers, each on its own connection, until the server dies or `finish` is
    called."""

    def __init__(self, history, connect, writers=3, flushers=1, seed=0):
        self.history = history
        self.ending = threading.Event()
        self.unexpected = []
        self.threads = []
        share = len(history.states) // writers
        for number in range(writers):
            rng = random.Random(f"{seed} {number}")
            self.start(self.write, connect(), rng, number * share, share)
        for _ in range(flushers):
            self.start(self.flush, connect())

    def start(self, body, handle, *arguments):
        def run():
            try:
                while not self.ending.is_set():
                    body(handle, *arguments)
            except nbd.Error as error:
                # The end of the server is expected, and its word that it is about to end; any other
                # error reply is not.
                if error.errno != "ESHUTDOWN" and not (
                    handle.aio_is_dead() or handle.aio_is_closed()
                ):
                    self.unexpected.append(error)
            except BaseException as error:
                self.unexpected.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)

    def write(self, handle, rng, first, share):
        """One write into this writer's own blocks: sub-block, whole blocks, or many; now and then
        zeroes or FUA."""
        sectors = rng.choice([1, 2, 5, 8, 8, 8, 16, 24, 64])
        # A third of the writes meet in a few blocks, so that some are overwritten again and again.
        room = (16 if rng.random() < 0.3 else share) * PER_BLOCK
        sector = first * PER_BLOCK + rng.randrange(min(room, share * PER_BLOCK) - sectors + 1)
        if sectors % PER_BLOCK == 0:
            sector -= sector % PER_BLOCK
        kind = rng.random()
        fua = nbd.CMD_FLAG_FUA if kind > 0.95 else 0
        zero = kind < 0.08
        data = self.history.begin(sector, sectors, zero)
        if zero:
            handle.zero(len(data), sector * SECTOR)
        else:
            handle.pwrite(data, sector * SECTOR, flags=fua)
        if fua:
            self.history.durable(sector, sectors)
        else:
            self.history.complete(sector, sectors)

    def flush(self, handle):
        self.history.flush(handle)
        time.sleep(0.002)

    def finish(self):
        """Waits for all to end."""
        self.ending.set()
        for thread in self.threads:
            thread.join(30)
            assert not thread.is_alive(), "a client still waits for the dead server"
        assert not self.unexpected, self.unexpected
