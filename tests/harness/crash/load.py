"""Clients of the server while its devices are recorded: writers with blocks of their own, and
one that flushes.
"""

import errno
import random
import threading
import time

import nbd

from ..history import PER_BLOCK, SECTOR

REST_S = 30


class Load:
    """Runs until `finish`, or until the server is gone. With `faulty` an error reply is no
    failure of the test; it is counted.
    """

    def __init__(self, timeline, connect, plan, life):
        self.timeline = timeline
        self.plan = plan
        self.ending = threading.Event()
        self.faulty = False
        self.errors = 0
        self.unexpected = []
        self.threads = []
        share = len(timeline.blocks) // plan.writers
        for number in range(plan.writers):
            rng = random.Random(f"load {plan.seed} {life} {number}")
            self.start(self.write, connect(), Writer(rng, number * share, share, plan.fua_percent))
        for number in range(plan.flushers):
            self.start(self.flush, connect(), random.Random(f"flush {plan.seed} {life} {number}"))

    def start(self, body, handle, *arguments):
        def run():
            try:
                while not self.ending.is_set():
                    body(handle, *arguments)
                    if handle.aio_is_dead() or handle.aio_is_closed():
                        break
            except BaseException as error:
                self.unexpected.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        self.threads.append(thread)

    def error(self, handle, error):
        """An error, or the end of the server, which is expected."""
        if handle.aio_is_dead() or handle.aio_is_closed() or error.errno == "ESHUTDOWN":
            self.ending.set()
        elif self.faulty and error.errnum in (errno.EIO, errno.ENOSPC):
            self.errors += 1
            # Whoever is told so at once and tries again at once would fill the log.
            time.sleep(0.002)
        else:
            self.unexpected.append(error)
            self.ending.set()

    def write(self, handle, writer):
        sector, count, kind = writer.choose()
        if not self.timeline.is_known(sector, count):
            # A part of a block of which nobody knows what it holds would leave it unknown.
            end = -(-(sector + count) // PER_BLOCK) * PER_BLOCK
            sector -= sector % PER_BLOCK
            count = end - sector
        fua = nbd.CMD_FLAG_FUA if kind == "fua" else 0
        states, data = self.timeline.begin(sector, count, kind == "zero")
        try:
            if kind == "zero":
                handle.zero(len(data), sector * SECTOR)
            else:
                handle.pwrite(data, sector * SECTOR, flags=fua)
        except nbd.Error as error:
            self.timeline.failed(sector, count)
            self.error(handle, error)
            return
        self.timeline.complete(sector, count, states, durable=bool(fua))

    def flush(self, handle, rng):
        time.sleep(rng.random() * 2 * self.plan.flush_pause_s)
        sent = time.monotonic_ns()
        try:
            handle.flush()
        except nbd.Error as error:
            self.error(handle, error)
            return
        self.timeline.flushed(sent)

    def finish(self):
        """Waits for all to end. Whether they did."""
        self.ending.set()
        deadline = time.monotonic() + REST_S
        for thread in self.threads:
            thread.join(max(0.1, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self.threads)


class Writer:
    """Chooses writes among blocks of its own: parts of blocks, blocks, many at once, streams,
    the same few again and again.
    """

    def __init__(self, rng, first, share, fua_percent):
        self.rng = rng
        self.fua_percent = fua_percent
        self.first = first * PER_BLOCK
        self.room = share * PER_BLOCK
        self.stream = 0

    def choose(self):
        rng = self.rng
        if self.stream:
            self.stream -= 1
            self.at = (self.at + 128) % (self.room // 128 * 128) if self.room >= 128 else 0
            return self.first + self.at, min(128, self.room), "write"
        if rng.random() < 0.01:
            self.stream, self.at = rng.randrange(2, 12), 0
        count = rng.choice([1, 2, 5, 8, 8, 8, 8, 16, 24, 64])
        room = min(self.room, 16 * PER_BLOCK if rng.random() < 0.3 else self.room)
        count = min(count, room)
        sector = rng.randrange(room - count + 1)
        if count % PER_BLOCK == 0:
            sector -= sector % PER_BLOCK
        shares = {"write": 93 - self.fua_percent, "fua": self.fua_percent, "zero": 7}
        return self.first + sector, count, rng.choices(list(shares), list(shares.values()))[0]
