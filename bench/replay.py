#!/usr/bin/python3
"""Replays a block trace over NBD: `bench/replay.py URI TRACE.csv`, or `play` from Python.

In a closed loop (no --speedup) a request is sent as soon as fewer than --depth are in flight. In
an open loop a request is due at its time in the trace divided by --speedup, and is sent then, or
as soon as fewer than --depth are in flight. Its latency counts from the moment it was sent. How
long after its due time it was sent is reported beside it, since a server that is too slow makes
later requests wait outside.

Requests are of three kinds: reads R, writes of whole 4 KiB blocks W, and other writes w.
"""

import argparse
import gc
import json
import math
import os
import select
import sys
import time

sys.dont_write_bytecode = True

try:
    import nbd
except ImportError:
    # `main` and bench/cache.py say so to a user who wants a replay; all else works without it.
    nbd = None

import blocktrace  # noqa: E402

BLOCK = 4096
KINDS = ("R", "W", "w")
OPEN_DEPTH, CLOSED_DEPTH = 64, 16
SLOWEST = 20


def play(uri, requests, *, depth=None, speedup=None, shift=0):
    """Replays requests in a loop that is open (`speedup` is given) or closed; returns figures."""
    depth = depth or (OPEN_DEPTH if speedup else CLOSED_DEPTH)
    given = {"depth": depth, "speedup": speedup, "shift": shift}
    return figures(replayed(uri, requests, **given), speedup) | given


def replayed(uri, requests, *, depth=OPEN_DEPTH, speedup, shift=0):
    """Replays them; of each the request, and when it was due, sent and answered."""
    handle = nbd.NBD()
    handle.connect_uri(uri)
    if handle.is_read_only():
        raise ValueError(f"{uri} cannot be written")
    requests = blocktrace.placed(requests, handle.get_size(), shift)
    player = Player(handle, requests, depth, speedup)
    player.run()
    handle.shutdown()
    return player.answered


class Player:
    """Sends requests on one connection, and notes when each was due, sent and answered."""

    def __init__(self, handle, requests, depth, speedup):
        self.handle = handle
        self.requests = requests
        self.depth = depth
        self.speedup = speedup
        self.in_flight = 0
        # Request, and when it was due, sent and answered, in seconds from the beginning.
        self.answered = []
        self.failure = None
        # All requests of one length share a buffer, so that no buffer is made during the replay.
        # Nobody looks at the data that is read, so reads may share theirs too.
        lengths = {request.length for request in requests}
        self.payload = {length: nbd.Buffer.from_bytearray(pattern(length)) for length in lengths}
        self.sink = {length: nbd.Buffer(length) for length in lengths}

    def run(self):
        # A garbage collection can stop this thread for longer than a request should take.
        gc.collect()
        gc.disable()
        try:
            self.send_all()
        finally:
            gc.enable()
        if self.failure:
            request, error = self.failure
            what = f"{request.op} of {request.length} bytes at {request.offset}"
            raise RuntimeError(f"{what} failed: {os.strerror(error)}")

    def send_all(self):
        self.began = time.monotonic()
        first = self.requests[0].time
        for request in self.requests:
            due = (request.time - first) / self.speedup if self.speedup else 0.0
            self.take_replies()
            self.wait_until(due)
            while self.in_flight >= self.depth:
                self.handle.poll(-1)
                self.take_replies()
            if self.failure:
                break
            self.send(request, due)
        while self.in_flight:
            self.handle.poll(-1)

    def now(self):
        return time.monotonic() - self.began

    def take_replies(self):
        """Takes the replies that are there already, so that their latency counts nothing later."""
        while self.in_flight and self.handle.poll(0):
            pass

    def wait_until(self, due):
        """Takes replies until a request is due; libnbd's own wait is in whole milliseconds."""
        while (left := due - self.now()) > 0:
            if not self.in_flight:
                time.sleep(left)
                continue
            descriptor, direction = self.handle.aio_get_fd(), self.handle.aio_get_direction()
            reads = [descriptor] if direction & nbd.AIO_DIRECTION_READ else []
            writes = [descriptor] if direction & nbd.AIO_DIRECTION_WRITE else []
            readable, writable, _ = select.select(reads, writes, [], left)
            if readable:
                self.handle.aio_notify_read()
            elif writable:
                self.handle.aio_notify_write()

    def send(self, request, due):
        self.in_flight += 1
        sent = self.now()

        def answered(error):
            self.in_flight -= 1
            if error.value and not self.failure:
                self.failure = request, error.value
            self.answered.append((request, due, sent, self.now()))
            # libnbd may forget the request.
            return 1

        if request.op == "R":
            self.handle.aio_pread(self.sink[request.length], request.offset, answered)
        else:
            self.handle.aio_pwrite(self.payload[request.length], request.offset, answered)


def pattern(length):
    """Bytes that are neither zero nor the same."""
    return (bytearray(range(256)) * -(-length // 256))[:length]


def kind(request):
    if request.op == "R":
        return "R"
    return "w" if (request.offset | request.length) % BLOCK else "W"


def figures(answered, speedup):
    """All figures of a replay, from (request, due, sent, ended) of each request."""
    latencies = {name: [] for name in KINDS}
    for request, _due, sent, ended in answered:
        latencies[kind(request)].append((ended - sent) * 1e3)
    kinds = {name: latency(found) for name, found in latencies.items()}
    kinds["writes"] = latency(latencies["W"] + latencies["w"])
    total = max(ended for _, _, _, ended in answered)
    late = latency([(sent - due) * 1e3 for _, due, sent, _ in answered]) if speedup else None
    return {
        "seconds": total, "requests": len(answered), "kinds": kinds, "late": late,
        "slowest": slowest(answered), "by_second": by_second(answered, total),
    }


def latency(found):
    """Count, mean, percentiles and the longest, in ms; all 0 where there is none."""
    ordered = sorted(found)
    count = len(ordered)

    def percentile(share):
        return ordered[int(count * share)] if count else 0.0

    return {
        "count": count, "mean_ms": sum(ordered) / max(1, count),
        "p50_ms": percentile(0.5), "p99_ms": percentile(0.99), "p999_ms": percentile(0.999),
        "max_ms": ordered[-1] if count else 0.0,
    }


def slowest(answered):
    """The requests that took longest: when they were sent, what they were, how long they took."""
    ordered = sorted(answered, key=lambda entry: entry[2] - entry[3])
    return [
        {
            "at_s": sent, "op": kind(request), "offset": request.offset, "length": request.length,
            "ms": (ended - sent) * 1e3,
        }
        for request, _due, sent, ended in ordered[:SLOWEST]
    ]


def by_second(answered, total):
    """For each second: writes that were answered in it, and how long the longest of them took."""
    count = max(1, math.ceil(total))
    writes, longest = [0] * count, [0.0] * count
    for request, _due, sent, ended in answered:
        if request.op == "W":
            second = min(int(ended), count - 1)
            writes[second] += 1
            longest[second] = max(longest[second], (ended - sent) * 1e3)
    return {"writes": writes, "longest_write_ms": longest}


def text(result):
    """The figures for people."""
    seconds, requests = result["seconds"], result["requests"]
    lines = [f"{requests:,} requests in {seconds:.1f} s, {requests / seconds:,.0f} a second"]
    lines.append(f"{'ms':8}{'count':>9}{'mean':>9}{'P50':>9}{'P99':>9}{'P99.9':>9}{'longest':>9}")
    rows = [(name, row) for name, row in result["kinds"].items() if row["count"]]
    if result["late"]:
        rows.append(("late", result["late"]))
    for name, row in rows:
        cells = (row[key] for key in ("mean_ms", "p50_ms", "p99_ms", "p999_ms", "max_ms"))
        lines.append(f"{name:8}{row['count']:9,}" + "".join(f"{cell:9.2f}" for cell in cells))
    lines.append("slowest: sent at s, op, offset, length, ms")
    for row in result["slowest"]:
        place = f"{row['offset']:>14}{row['length']:>9}"
        lines.append(f"{row['at_s']:9.2f} {row['op']} {place}{row['ms']:9.1f}")
    lines.append("second, writes answered in it, the longest of them in ms")
    series = result["by_second"]
    for second, (writes, longest) in enumerate(zip(series["writes"], series["longest_write_ms"])):
        lines.append(f"{second:6}{writes:9,}{longest:9.1f}")
    return "\n".join(lines)


def above_zero(what):
    def convert(word):
        value = what(word)
        if not 0 < value < math.inf:
            raise ValueError
        return value

    convert.__name__ = "number above 0"
    return convert


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("uri", help="such as nbd+unix:///vol0?socket=PATH")
    parser.add_argument("trace", help="CSV: a header line, then time,op,offset,length")
    depths = f"requests in flight [{CLOSED_DEPTH}; with --speedup {OPEN_DEPTH}]"
    parser.add_argument("--depth", type=above_zero(int), help=depths)
    speedups = "open loop, so many times as fast"
    parser.add_argument("--speedup", type=above_zero(float), help=speedups)
    parser.add_argument("--shift", type=int, default=0, help="sectors added to each offset")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    options = parser.parse_args()
    if nbd is None:
        parser.error("python3-libnbd is missing")
    try:
        requests = blocktrace.read(options.trace)
        given = {"depth": options.depth, "speedup": options.speedup, "shift": options.shift}
        result = play(options.uri, requests, **given)
    except (OSError, ValueError, RuntimeError, nbd.Error) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result, indent=1) if options.json else text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
