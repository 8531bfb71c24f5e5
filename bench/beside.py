"""The part `beside` of bench/cache.py: what clients see of each job of the background.

4 KiB random writes, and reads and writes 70 to 30, at a low and at a high depth, over a quarter of
the cache and over four times the cache; and `paced` ones, writes over four times the cache at a
rate that the pool can take. Every request is logged with its latency; the server is asked again and
again which jobs are under way. A request counts to a job if it overlaps a time in which the job was
seen, and to the time outside of the job if it does not. So each job is compared with the same load
without it, in the same run.

Over four times the cache a pass of write-back runs nearly always, and the disk behind it decides
what clients get, unless they ask for less than it can do: paced. As in
`steady`, a thread writes single blocks into a file of its own: when the disk of the cache stands
still, it waits too.
"""

import bisect
import pathlib
import subprocess
import tempfile
import time

import cached
import control
import fio
from servers import GIB
from steady import Repeated, Singles

# The part of the cache that is written, and writes a second; 0: as many as there can be.
SHARES = {"0.25": (0.25, 0), "4": (4, 0), "paced": (4, 4000)}
LOADS = [
    (share, rw, depth)
    for share in ("0.25", "4")
    for rw in ("randwrite", "randrw")
    for depth in (10, 128)
]
LOADS += [("paced", "randwrite", depth) for depth in (10, 128)]
SLOW = "50ms"
JOBS = ("collection", "checkpoint", "write-back")
EVERY_S = 0.02
SET = ("P50", 0.5), ("P99", 0.99), ("P99.9", 0.999), ("longest", 1.0)


def measure(options, work, seconds):
    """A row for each load and job."""
    rows = []
    size = options.steady_cache
    server = cached.start(
        "forebay", work, options, cache_gib=size, volume_gib=size * 4, set_gib=size
    )
    try:
        words, volume = server.fio_target()
        for share, rw, depth in LOADS:
            if not options.shares or share in options.shares:
                target = words, min(volume, int(size * SHARES[share][0] * GIB))
                rows += look(server, target, share, rw, depth, seconds)
    finally:
        server.stop()
    return rows


def look(server, target, share, rw, depth, seconds):
    """The rows of one load."""
    if SHARES[share][0] < 1:
        # Reads find it in the cache then.
        fio.cover(target)
    with Singles(server.file.with_name("singles.img")) as singles:
        requests, times = run(server, target, (rw, depth, SHARES[share][1]), seconds)
    about = {
        "load": rw, "depth": depth, "share": share, "seconds": seconds,
        "longest_single_ms": singles.longest_ms, "verdict": verdict(server, seconds),
    }
    return [about | {"job": job} | compare(requests, times[job]) for job in JOBS]


def verdict(server, seconds):
    """What the server says of its slow requests."""
    words = [
        server.bin, "explain", "--since", f"{seconds + 1}s", "--slower-than", SLOW, "--socket",
        server.control,
    ]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def run(server, target, load, seconds):
    """The requests, as (end, latency) in ms, and the times of each job, on the same clock."""
    (words, size), (rw, depth, rate) = target, load
    with tempfile.TemporaryDirectory(prefix="forebay-beside-") as logs, Watch(server) as watch:
        mix = ["--rwmixread=70"] if rw == "randrw" else []
        mix += [f"--rate_iops={rate}", "--rate_process=poisson"] if rate else []
        fio.call([
            "fio", "--name=beside", *words, f"--rw={rw}", *mix, "--bs=4k", f"--iodepth={depth}",
            f"--size={size}", "--norandommap", "--randrepeat=0", "--time_based",
            f"--runtime={seconds}", "--output-format=json", f"--write_lat_log={logs}/log",
            "--log_unix_epoch=1",
        ])
        requests = []
        with pathlib.Path(logs, "log_lat.1.log").open() as lines:
            for line in lines:
                ended, took, _ = line.split(",", 2)
                requests.append((int(ended), int(took) / 1e6))
    return requests, watch.times()


class Watch(Repeated):
    """Which jobs are under way, again and again."""

    def __init__(self, server):
        super().__init__(EVERY_S)
        self.control = control.Control(server.control)
        self.seen = []

    def __exit__(self, *ended):
        try:
            super().__exit__(*ended)
        finally:
            self.control.socket.close()

    def step(self):
        asked = time.time() * 1000
        status = self.control.cache_status()
        passes = {
            "collection": status["gc"]["passes"],
            "checkpoint": status["index"]["checkpoints"],
            "write-back": status["writeback"]["passes"],
        }
        self.seen.append((asked, time.time() * 1000, set(status["working"]), passes))

    def times(self):
        """Of each job, the times in which it may have been under way, in order: from the look
        before it was seen to the one after. One that began and ended between two looks is seen by
        its counter."""
        found = {}
        for job in JOBS:
            times = found.setdefault(job, [])
            for (began, _, before, count), (_, ended, after, counted) in zip(
                self.seen, self.seen[1:]
            ):
                if job in before or job in after or count[job] != counted[job]:
                    if times and times[-1][1] >= began:
                        times[-1][1] = ended
                    else:
                        times.append([began, ended])
        return found


def compare(requests, times):
    """Latencies of the requests beside a job, and of the others."""
    begins = [begin for begin, _ in times]
    beside, outside = [], []
    for ended, took in requests:
        # The log's times are in whole ms.
        at = bisect.bisect_right(begins, ended + 1) - 1
        meets = at >= 0 and times[at][1] >= ended - took
        (beside if meets else outside).append(took)
    return {
        "times": len(times), "job_seconds": sum(end - begin for begin, end in times) / 1000,
        "beside": summary(beside), "outside": summary(outside),
    }


def summary(took):
    took.sort()
    count = len(took)
    return {"requests": count} | {
        name: took[min(count - 1, int(count * share))] if took else None for name, share in SET
    }


def markdown(rows):
    if not rows:
        return []
    lines = ["## Latency beside the background, ms", ""]
    lines += [
        "| load | of the cache | depth | job | times | s | requests beside it | P50 | P99 | "
        "P99.9 | longest | longest of the witness |"
    ]
    lines += ["| --- | ---: | ---: | --- | ---: | ---: | ---: | --- | --- | --- | --- | ---: |"]
    for row in rows:
        cells = [
            row["load"], row["share"], str(row["depth"]), row["job"], str(row["times"]),
            f"{row['job_seconds']:.1f} of {row['seconds']}",
        ]
        cells += [
            f"{row['beside']['requests']:,} of "
            f"{row['beside']['requests'] + row['outside']['requests']:,}"
        ]
        cells += [
            f"{value(row['beside'][name])} / {value(row['outside'][name])}" for name, _ in SET
        ]
        cells.append(f"{row['longest_single_ms']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Each pair: beside the job / outside of it.", ""]
    for row in rows[:: len(JOBS)]:
        lines += [
            (
                f"`forebay explain --slower-than {SLOW}` after {row['load']}, "
                f"depth {row['depth']}, over {row['share']} of the cache:"
            ),
            "",
        ]
        lines += ["```text", row["verdict"].rstrip(), "```", ""]
    return lines


def value(ms):
    return "-" if ms is None else f"{ms:.1f}"
