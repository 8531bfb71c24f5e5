"""Steady random writes over more than the cache holds: throughput each second, latencies, and a
picture of both.

Beside them a thread writes single blocks, fifty a second, into a file of its own that no server
has. When the disk stands still, it waits too."""

import collections
import mmap
import os
import pathlib
import statistics
import tempfile
import threading
import time

import fio
import svg

LATE_MS = 100
MAX_LAG_S = 30
SAMPLE_S = 5
SINGLES_S = 0.02
BLOCKS = 256
PAUSE_MS = 50


def measure(server, seconds, depth=32):
    """4 KiB random writes all over the volume for so long, and a second more: the end cuts the last
    one."""
    words, size = server.fio_target()
    own = server.file.with_name("singles.img")
    with (
        tempfile.TemporaryDirectory(prefix="forebay-steady-") as logs,
        Watch(server) as watch,
        Singles(own) as singles,
    ):
        job = fio.call([
            "fio", "--name=steady", *words, "--rw=randwrite", "--bs=4k", f"--iodepth={depth}",
            f"--size={size}", "--norandommap", "--randrepeat=0", "--time_based",
            f"--runtime={seconds + 1}", "--output-format=json+",
            "--percentile_list=50:99:99.9:99.99", f"--write_bw_log={logs}/log",
            f"--write_lat_log={logs}/log", "--log_avg_msec=1000", "--bwavgtime=1000",
            "--log_max_value=1",
        ])
        rates = by_second(pathlib.Path(logs, "log_bw.1.log"), seconds, min)
        worst = by_second(pathlib.Path(logs, "log_clat.1.log"), seconds)
    side = job["write"]
    percentile = side["clat_ns"]["percentile"]
    iops = [kib / 4 for kib in rates]
    late = {
        int(bin_ns): count
        for bin_ns, count in side["clat_ns"].get("bins", {}).items()
        if int(bin_ns) > LATE_MS * 1_000_000
    }
    return {
        "server": server.name, "seconds": seconds, "depth": depth, "requests": side["total_ios"],
        "iops": iops, "max_ms_by_second": [worst_ns / 1e6 for worst_ns in worst],
        "median_iops": statistics.median(iops), "lowest_iops": min(iops),
        "lowest_to_median": min(iops) / max(1, statistics.median(iops)),
        "p50_ms": percentile["50.000000"] / 1e6, "p99_ms": percentile["99.000000"] / 1e6,
        "p999_ms": percentile["99.900000"] / 1e6, "p9999_ms": percentile["99.990000"] / 1e6,
        "max_ms": side["clat_ns"]["max"] / 1e6, f"above_{LATE_MS}_ms": sum(late.values()),
        "pauses": singles.pauses, "longest_single_ms": singles.longest_ms, "samples": watch.samples,
        "max_lag_s": max((sample["lag_seconds"] for sample in watch.samples), default=0.0),
    }


class Repeated:
    """Does something again and again, in a thread, until it is left; then an error of the thread is
    raised."""

    def __init__(self, every_s):
        self.every_s = every_s
        self.over = threading.Event()
        self.error = None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def __enter__(self):
        self.began = time.monotonic()
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()
        if self.error:
            raise self.error

    def run(self):
        try:
            while not self.over.wait(self.every_s):
                self.step()
        except Exception as e:
            self.error = e


class Watch(Repeated):
    """What the server says of its write-back."""

    def __init__(self, server, every_s=SAMPLE_S):
        super().__init__(every_s)
        self.server = server
        self.samples = []

    def step(self):
        status = self.server.cache_status()
        back = status["writeback"]
        self.samples.append({
            "at_s": time.monotonic() - self.began, "dirty_bytes": status["dirty_bytes"],
            "dirty_share": status["dirty_bytes"] / status["size_bytes"],
            "buckets": status["buckets"],
            "lag_seconds": back["lag_seconds"], "rate": back["rate"], "passes": back["passes"],
        })


class Singles(Repeated):
    """Writes one block after the other into a file of its own, past the page cache; `pauses` are
    those that took long: seconds since the begin, and ms."""

    def __init__(self, path):
        super().__init__(SINGLES_S)
        self.path = path
        self.pauses = []
        self.longest_ms = 0.0
        self.written = 0

    def __enter__(self):
        # /dev/shm has no O_DIRECT.
        direct = 0 if str(self.path).startswith("/dev/shm/") else os.O_DIRECT
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | direct, 0o600)
        self.block = mmap.mmap(-1, 4096)
        for _ in range(BLOCKS):
            self.write()
        os.fsync(self.fd)
        return super().__enter__()

    def __exit__(self, *raised):
        try:
            super().__exit__(*raised)
        finally:
            os.close(self.fd)
            self.path.unlink()

    def write(self):
        os.pwrite(self.fd, self.block, self.written % BLOCKS * len(self.block))
        self.written += 1

    def step(self):
        asked = time.monotonic()
        self.write()
        took_ms = (time.monotonic() - asked) * 1000
        self.longest_ms = max(self.longest_ms, took_ms)
        if took_ms > PAUSE_MS:
            self.pauses.append((asked - self.began, took_ms))


def by_second(path, seconds, together=max):
    """One value for each whole second of a log of fio (time in ms, value, ...), whose entries are
    each of the time since the one before, a second and some milliseconds. A second is worth what
    `together` makes of the entries that cover a quarter of it or more; 0 without any."""
    entries, began = [], 0
    for line in path.read_text().splitlines():
        fields = line.split(",")
        ended = int(fields[0])
        entries.append((began, ended, float(fields[1])))
        began = ended
    covering = collections.defaultdict(list)
    for began, ended, value in entries:
        for second in range(began // 1000, ended // 1000 + 1):
            if min(ended, (second + 1) * 1000) - max(began, second * 1000) >= 250:
                covering[second].append(value)
    return [
        together(covering[second]) if covering[second] else 0.0 for second in range(int(seconds))
    ]


def picture(result, path, about):
    drawn = svg.Picture(
        f"4 KiB random writes, depth {result['depth']}, over 4 x the cache ({about})"
    )
    median = result["median_iops"]
    drawn.panel(
        "thousands of writes a second", [iops / 1000 for iops in result["iops"]], "#1f6fb4",
        [(median / 1000, f"median {median / 1000:.1f}"), (median / 2000, "half of it")],
    )
    drawn.panel(
        "longest write of the second, ms",
        result["max_ms_by_second"],
        "#c44e20",
        [(LATE_MS, f"{LATE_MS} ms")],
    )
    lags = [0.0] * result["seconds"]
    for sample in result["samples"]:
        first = min(int(sample["at_s"]), len(lags))
        lags[first:] = [sample["lag_seconds"]] * (len(lags) - first)
    drawn.panel("age of the pool's image, s", lags, "#3a8a4d", [(MAX_LAG_S, "max_lag")])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(drawn.text())
