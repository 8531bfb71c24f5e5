#!/usr/bin/python3
"""Loads that are like a trace and made from a seed: lists of requests, or files of them
(`bench/synthetic.py bursts --out FILE.csv`) that bench/replay.py reads.

- `bursts`: a few seconds of dense random writes of 4 to 64 KiB, after stretches that are quiet.
- `streams`: sequential streams of writes of 60 KiB that begin at odd sectors, beside random writes
  of 4 KiB.
- `mixed`: the same, while blocks at the beginning of the volume are read at random. These must be
  written before the replay (`FILLED`), so that the pool has them and the cache has not.

The same seed makes the same requests. The offsets of `bursts`, and of the random writes of the
others, are multiples of 4 KiB. A load that depends on the size of the cache is in bench/burst.py.
"""

import argparse
import heapq
import random
import sys

sys.dont_write_bytecode = True

import blocktrace  # noqa: E402

BLOCK = 4096
SIZE = 32 << 30
SECONDS = 40
# `mixed` reads here, and nothing else writes here.
FILLED = 1 << 30

QUIET_S, QUIET_RATE = (6, 10), 10
BURST_S, BURST_RATE, BURST_BLOCKS = (2, 4), 1500, 16

STREAMS, STREAM_RATE, STREAM_LENGTH = 2, 200, 60 << 10
STREAM_BYTES = (4 << 20, 64 << 20)
RANDOM_RATE, READ_RATE = 500, 50


def bursts(seed=1, seconds=SECONDS, size=SIZE):
    """Quiet stretches and bursts take turns, a quiet one first."""
    dice = random.Random(seed)
    requests, began = [], 0.0
    while began < seconds:
        burst = began + dice.uniform(*QUIET_S)
        ended = burst + dice.uniform(*BURST_S)
        requests += writes(dice, QUIET_RATE, began, min(burst, seconds), size, 1)
        requests += writes(dice, BURST_RATE, burst, min(ended, seconds), size, BURST_BLOCKS)
        began = ended
    return requests


def streams(seed=1, seconds=SECONDS, size=SIZE):
    """Streams and random writes, all of them all the time."""
    dice = random.Random(seed)
    parts = [stream(dice, seconds, size) for _ in range(STREAMS)]
    return merged([*parts, writes(dice, RANDOM_RATE, 0, seconds, size, 1)])


def mixed(seed=1, seconds=SECONDS, size=SIZE):
    """The same streams and writes, and reads of what the pool has."""
    # One generator for the writes and one for the reads: the writes are those of `streams`.
    dice = random.Random(-seed - 1)
    reads = [
        request(when, "R", dice.randrange(FILLED // BLOCK) * BLOCK, BLOCK)
        for when in moments(dice, READ_RATE, 0, seconds)
    ]
    return merged([streams(seed, seconds, size), reads])


def writes(dice, rate, began, ended, size, most_blocks):
    """Writes of up to so many blocks, anywhere behind `FILLED`."""
    found = []
    for when in moments(dice, rate, began, ended):
        blocks = dice.randint(1, most_blocks)
        place = dice.randrange(FILLED // BLOCK, size // BLOCK - most_blocks)
        found.append(request(when, "W", place * BLOCK, blocks * BLOCK))
    return found


def stream(dice, seconds, size):
    """Writes one after another, which go on elsewhere when a stream ends."""
    found, place, end = [], 0, 0
    for when in moments(dice, STREAM_RATE, 0, seconds):
        if place >= end:
            begin = dice.randrange(FILLED, size - STREAM_BYTES[1] - STREAM_LENGTH)
            # An odd number of sectors: never a multiple of a block.
            place = (begin // blocktrace.SECTOR | 1) * blocktrace.SECTOR
            end = place + dice.randint(*STREAM_BYTES)
        found.append(request(when, "W", place, STREAM_LENGTH))
        place += STREAM_LENGTH
    return found


def moments(dice, rate, began, ended):
    """Moments without memory, so many a second on average."""
    when = began + dice.expovariate(rate)
    while when < ended:
        yield when
        when += dice.expovariate(rate)


def request(when, op, offset, length):
    # As exact as in a file.
    return blocktrace.Request(round(when, 6), op, offset, length)


def merged(parts):
    return list(heapq.merge(*parts, key=lambda one: one.time))


KINDS = {"bursts": bursts, "streams": streams, "mixed": mixed}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--size", type=int, default=SIZE, help="bytes of the volume")
    parser.add_argument("--out", default="/dev/stdout", help="the file to write [standard output]")
    options = parser.parse_args()
    if options.size < 2 * FILLED:
        parser.error(f"--size: at least {2 * FILLED}")
    requests = KINDS[options.kind](options.seed, options.seconds, options.size)
    blocktrace.write(options.out, requests)
    return 0


if __name__ == "__main__":
    sys.exit(main())
