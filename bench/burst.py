"""`burst60`: random writes of 4 KiB at depth 32, as fast as they go, of 60 % of the cache and on
until 130 % of it.

The first 60 % should go at the speed of the cache, whatever write-back does meanwhile; what comes
then should get slower, but not at once. The reference is the same number of writes with no
write-back. No setting switches that off, so the reference has a cache four times as large, of
which 90 % may be dirty, and an image of the pool that may be an hour old.
"""

import itertools
import pathlib
import statistics
import tempfile

import fio
import steady
import up

BLOCK = 4096
DEPTH = 32
FIRST, ALL = 0.6, 1.3
# The writes go to so many times the cache, of a volume that is larger.
OVER = 4
REFERENCE = {"dirty_target": 90, "dirty_limit": 95, "max_lag": "1h"}
REFERENCE_OVER = 4


def measure(options, work, cache_bytes, every_s):
    """The reference, then the run itself."""
    reference = run(options, work, cache_bytes, cache_bytes * REFERENCE_OVER, REFERENCE, every_s)
    result = run(options, work, cache_bytes, cache_bytes, None, every_s)
    writes = cache_bytes * FIRST / BLOCK
    rate, undisturbed = (first_rate(found["iops"], writes) for found in (result, reference))
    return result | {
        "cache_bytes": cache_bytes, "reference": reference, "first_rate": rate,
        "reference_rate": undisturbed, "first_to_reference": rate / undisturbed,
        **steadiness(result["iops"], writes),
    }


def run(options, work, load_bytes, cache_bytes, settings, every_s):
    """Writes of 130 % of `load_bytes`, through a cache of `cache_bytes`."""
    server = up.Up(options, work, cache_bytes, settings=settings)
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-burst-") as logs:
            with steady.Watch(server, every_s) as watch:
                job = fio.call(command(server, load_bytes, logs))
            seconds = max(1, job["write"]["runtime"] // 1000)
            rates = steady.by_second(pathlib.Path(logs, "log_bw.1.log"), seconds, min)
            worst = steady.by_second(pathlib.Path(logs, "log_clat.1.log"), seconds)
        status = server.cache_status()
    finally:
        server.discard()
    side = job["write"]
    percentile = side["clat_ns"]["percentile"]
    return {
        "seconds": side["runtime"] / 1000, "requests": side["total_ios"],
        "iops": [kib * 1024 / BLOCK for kib in rates], "longest_ms": [ns / 1e6 for ns in worst],
        "p99_ms": percentile["99.000000"] / 1e6, "p999_ms": percentile["99.900000"] / 1e6,
        "max_ms": side["clat_ns"]["max"] / 1e6, "samples": watch.samples, "status": status,
    }


def command(server, load_bytes, logs):
    words, _ = server.fio_target()
    return [
        "fio", "--name=burst", *words, "--rw=randwrite", "--bs=4k", f"--iodepth={DEPTH}",
        f"--size={load_bytes * OVER}", f"--io_size={int(load_bytes * ALL) // BLOCK * BLOCK}",
        "--norandommap", "--randrepeat=0", "--output-format=json", "--percentile_list=99:99.9",
        f"--write_bw_log={logs}/log", f"--write_lat_log={logs}/log", "--log_avg_msec=1000",
        "--bwavgtime=1000", "--log_max_value=1",
    ]


def first_rate(iops, writes):
    """The mean rate of the first so many writes; of all, where there were no more."""
    done = 0.0
    for second, rate in enumerate(iops):
        if done + rate >= writes:
            return writes / (second + (writes - done) / rate)
        done += rate
    return done / len(iops)


def steadiness(iops, writes):
    """How even the whole seconds of the first writes were, and how much slower than the second
    before it any later one was; None where there are too few seconds."""
    whole = sum(done <= writes for done in itertools.accumulate(iops))
    first = iops[:whole]
    ratios = [iops[at] / max(1, iops[at - 1]) for at in range(max(1, whole), len(iops))]
    return {
        "first_seconds": whole,
        "lowest_to_median": min(first) / max(1, statistics.median(first)) if first else None,
        "smallest_step": min(ratios, default=None),
    }
