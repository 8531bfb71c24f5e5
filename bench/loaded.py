"""The second half of the part `scrub` of bench/run: what a scrub costs the clients, and the clients
a scrub.

A pool of two copies on two files, on each of them emulated as a rotating disk or as it is. A closed
loop of reads and writes of 4 KiB at random (70 to 30, depth 4) says what the device can do. Half of
that is offered then, at fixed times: without a scrub, and with one, in turn. So a slow request is
not followed by fewer. A scrub has the device for itself once, and has to end within four times that
while the load goes on.
"""

import statistics
import threading
import time

import fio
import scrub
from servers import GIB

READS = 0.7
MIX = [
    "--rw=randrw", f"--rwmixread={READS * 100:.0f}", "--bs=4k", "--norandommap", "--randrepeat=0",
    "--lat_percentiles=1", "--percentile_list=50:99:99.9",
]
# A scrub under load ends after so many times of an idle one at the latest.
MOST_TIMES = 4
# Fewer requests say nothing of P99.9.
LEAST_REQUESTS = 1000


def measure(options, backing, work):
    """Yields rows: latencies in ms without and with a scrub, and the times of scrubs in s; medians
    of rounds."""
    # What is measured takes longer than the rest: a part of the data is enough.
    size = max(GIB // 4, (options.size_disk if backing == "disk" else options.size_shm) * GIB // 4)
    for emulate in ("hdd", "") if backing == "disk" else ("",):
        yield loaded(options, backing, work, size, emulate)


def loaded(options, backing, work, size, emulate):
    pool = Pool(work, size, options, emulate)
    try:
        most = run(pool, seconds=max(options.seconds, 10))["iops"]
        rate, idle = max(1, round(most / 2)), []
        found = {"without": [], "with": []}
        for _ in range(options.rounds):
            idle.append(pool.scrub()["seconds"])
            # Time for a scrub that is as slow as it may be, and for requests enough.
            seconds = max(
                options.seconds, min(120, 4 * LEAST_REQUESTS / rate), MOST_TIMES * idle[-1] + 1
            )
            found["without"].append(run(pool, rate, seconds))
            found["with"].append(pool.scrub_beside(rate, seconds))
    finally:
        pool.discard()
    row = {
        "backing": f"{backing}, emulated {emulate}" if emulate else backing,
        "gib": size / GIB,
        "most_iops": most,
        "offered_iops": rate,
    }
    for name, runs in found.items():
        row[name] = {key: statistics.median(one[key] for one in runs) for key in runs[0]}
    row["idle_s"] = statistics.median(idle)
    row["done_share"] = min(one["done_share"] for one in found["with"])
    return row


def run(pool, rate=None, seconds=10.0):
    """Latencies of all requests, reads and writes together: of a closed loop, or offered at this
    rate."""
    words, size = pool.fio_target()
    command = [
        "fio", "--name=bench", *words, *MIX, f"--size={size}", "--time_based",
        f"--runtime={round(seconds * 1000)}ms", "--output-format=json",
    ]
    command += ["--unified_rw_reporting=1", f"--iodepth={64 if rate else 4}"]
    if rate:
        # Requests come at times of their own, as from many clients. fio takes one rate for reads
        # and one for writes.
        reads = round(rate * READS)
        command += [f"--rate_iops={reads},{rate - reads}", "--rate_process=poisson"]
    side = fio.call(command)["mixed"]
    if rate and not 0.9 < side["iops"] / rate < 1.1:
        raise RuntimeError(f"{rate} requests a second were to be offered, {side['iops']:.0f} were")
    percentile = side["lat_ns"]["percentile"]
    return {
        "iops": side["iops"],
        "requests": side["total_ios"],
        "p50_ms": percentile["50.000000"] / 1e6,
        "p99_ms": percentile["99.000000"] / 1e6,
        "p999_ms": percentile["99.900000"] / 1e6,
        "max_ms": side["lat_ns"]["max"] / 1e6,
    }


class Pool(scrub.Pool):
    """As for scrubs alone, on emulated devices or not."""

    name = "forebay-scrub-loaded"

    def __init__(self, work, size, options, emulate):
        self.emulate = emulate
        super().__init__(work, size, options)

    def served(self, path):
        return f"{str(path).replace(',', ',,')},emulate={self.emulate}" if self.emulate else path

    def scrub_beside(self, rate, seconds):
        """The load, and scrubs one after another as long as it goes on: latencies of the load, the
        median time of the scrubs that ended, how much was done of the first, and how long it took
        to pause it."""
        times, done, began, found, paused = [], 0.0, 0.0, {}, 0.0

        def offer():
            try:
                found.update(run(self, rate, seconds))
            except RuntimeError as e:
                found["error"] = e

        load = threading.Thread(target=offer)
        load.start()
        while load.is_alive():
            began = time.monotonic()
            self.call("scrub", "start", "--socket", self.control)
            if not paused:
                paused, began = self.pause(began)
            while (status := self.status())["state"] == "running" and load.is_alive():
                time.sleep(0.05)
            if status["bad"]:
                raise RuntimeError(f"a scrub of a pool that is well: {status}")
            if status["state"] == "done":
                times.append(time.monotonic() - began)
            elif not times:
                done = status["verified_bytes"] / max(status["all_bytes"], 1)
        load.join()
        if "error" in found:
            raise found["error"]
        if self.status()["state"] == "running":
            self.call("scrub", "cancel", "--socket", self.control)
        ended = bool(times)
        took = statistics.median(times) if ended else time.monotonic() - began
        return found | {"scrub_s": took, "done_share": 1.0 if ended else done, "pause_s": paused}

    def pause(self, began):
        """Pauses a scrub that began then, and lets it go on: how long the first took, until nothing
        is verified any more; and when it would have begun without the pause."""
        while self.status()["verified_bytes"] == 0:
            time.sleep(0.01)
        asked = time.monotonic()
        try:
            self.asks.ask("scrub-pause")
        except RuntimeError:
            if self.status()["state"] == "done":
                return 0.0, began
            raise
        took, verified = time.monotonic() - asked, self.status()["verified_bytes"]
        time.sleep(0.2)
        while (now := self.status()["verified_bytes"]) != verified:
            took, verified = time.monotonic() - asked, now
            time.sleep(0.2)
        self.asks.ask("scrub-resume")
        return took, began + time.monotonic() - asked

    def discard(self):
        self.stop()
        for path in self.files:
            path.unlink(missing_ok=True)


def markdown(rows):
    if not rows:
        return []
    lines = [
        "## A scrub beside clients",
        "",
        (
            "Half of the requests that a closed loop reaches, 70 % reads, 4 KiB, at random; "
            "latencies in ms, without and with a scrub."
        ),
        "",
    ]
    lines += [
        (
            "| files on | offered, a second | P50 | with | P99 | with | ratio | P99.9 | with | "
            "ratio | scrub idle, s | loaded, s | times |"
        ),
        "| --- |" + " ---: |" * 12,
    ]
    for row in rows:
        one, other = row["without"], row["with"]
        cells = [
            row["backing"],
            f"{row['offered_iops']:,}",
            f"{one['p50_ms']:.2f}",
            f"{other['p50_ms']:.2f}",
        ]
        for key in ("p99_ms", "p999_ms"):
            cells += [f"{one[key]:.2f}", f"{other[key]:.2f}", f"{other[key] / one[key]:.2f}"]
        took = (
            f"{other['scrub_s']:.1f}"
            if row["done_share"] == 1
            else f"{row['done_share']:.0%} after {other['scrub_s']:.1f}"
        )
        cells += [f"{row['idle_s']:.1f}", took, f"{other['scrub_s'] / row['idle_s']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]
