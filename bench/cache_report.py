"""The tables of bench/cache.py."""

import bars
import beside
import overwrite
import report
import reread
import restart
import trace_report
from steady import LATE_MS, PAUSE_MS

MIB = 1 << 20


def markdown(results):
    table = report.Table(results["runs"])
    options = results["options"]
    lines = [
        "# Benchmark of the cache",
        "",
        *(f"- {name}: {value}" for name, value in results["machine"].items()),
    ]
    lines += [
        f"- pool emulated: {options['emulate'] or 'no'}; "
        f"cache: {options['cache_disk']} GiB on the disk, {options['cache_shm']} GiB on /dev/shm"
    ]
    lines += [
        (
            f"- {options['rounds']} rounds of {options['seconds']} s, interleaved; medians; "
            f"in {float(options['set']):.0%} of the cache's size"
        ),
        "",
    ]
    for backing in dict.fromkeys(run["backing"] for run in results["runs"]):
        lines += [f"## Cache on {'a disk' if backing == 'disk' else '/dev/shm'}", ""]
        lines += report.grid(table, backing, "Thousands of requests a second", report.rate)
        lines += report.grid(table, backing, "Latency, median / P99 / longest, us", latency)
        lines += report.grid(
            table,
            backing,
            "Write and flush, median of both, us",
            lambda run, _: f"{run['cycle_p50_us']:,.0f}",
            only="cycle_p50_us",
        )
        lines += report.flushes(table, backing)
        flushed = "MB/s of writes, when the flush after the run is counted"
        lines += report.grid(
            table,
            backing,
            flushed,
            lambda run, _: f"{run['flushed_mb_per_s']:,.0f}",
            only="flushed_mb_per_s",
        )
        lines += report.grid(
            table,
            backing,
            "Server CPU, seconds per 100,000 requests",
            lambda run, _: f"{run['cpu_s_per_100k']:.2f}",
            skip=("raw",),
        )
        lines += report.memory(results["memory"].get(backing, {}))
    lines += steady(results["steady"]) + restarts(results["restart"])
    lines += trace_report.markdown(results["traces"]) + beside.markdown(results["beside"])
    lines += reread.markdown(results["reread"]) + overwrite.markdown(results["overwrite"])
    found = bars.of_cache(table, results)
    results["bars"] = found.rows
    return "\n".join(lines + found.markdown()) + "\n"


def latency(run, _):
    return f"{run['p50_us']:,.0f} / {run['p99_us']:,.0f} / {run['max_us']:,.0f}"


def steady(rows):
    if not rows:
        return []
    lines = ["## Steady random writes over 4 x the cache", ""]
    names = [
        "cache", "s", "median IOPS", "lowest second", "lowest / median", "P50 ms", "P99 ms",
        "P99.9 ms", "P99.99 ms", "longest ms", "above 100 ms", "of", "oldest image s",
    ]
    names += ["longest single write beside, ms"]
    lines += ["| " + " | ".join(names) + " |", "| --- |" + " ---: |" * (len(names) - 1)]
    for row in rows:
        cells = [
            f"{row['cache_gib']:g} GiB, {row['backing']}",
            str(row["seconds"]),
            f"{row['median_iops']:,.0f}",
            f"{row['lowest_iops']:,.0f}",
        ]
        cells += [
            f"{row['lowest_to_median']:.2f}",
            *(f"{row[name]:.1f}" for name in ("p50_ms", "p99_ms", "p999_ms", "p9999_ms", "max_ms")),
        ]
        cells += [
            f"{row['above_100_ms']:,}",
            f"{row['requests']:,}",
            f"{row['max_lag_s']:.0f}",
            f"{row['longest_single_ms']:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    for row in rows:
        lines += stalls(row)
    return [*lines, ""]


def stalls(row):
    """Of each second with a request above 100 ms: what a writer beside it, past every server, saw
    of the disk."""
    lines = []
    for second, worst_ms in enumerate(row["max_ms_by_second"]):
        if worst_ms > LATE_MS:
            beside = max((ms for at, ms in row["pauses"] if abs(at - second) < 2), default=None)
            saw = f"took {beside:.0f} ms" if beside else f"took at most {PAUSE_MS} ms"
            lines.append(
                f"- second {second}: {worst_ms:.0f} ms; "
                f"a single write into a file of its own {saw} then"
            )
    return ["", *lines] if lines else []


def restarts(results):
    if not results:
        return []
    lines = ["## Restart after kill -9 with a full cache of 4 KiB extents", ""]
    names = [
        "cache", "index memory", "median s", "worst s", "replay, worst ms", "resident MiB at start",
        "after reads", "peak", "read IOPS then", "wrong of",
    ]
    names += ["memory for a TiB, GiB", "index for a TiB, GiB"]
    lines += ["| " + " | ".join(names) + " |", "| --- | --- |" + " ---: |" * (len(names) - 2)]
    for result in results:
        for row in result["rows"]:
            cells = [
                f"{result['cache_gib']:g} GiB, {result['backing']}",
                row["index_memory"],
                f"{row['median_s']:.3f}",
                f"{row['max_s']:.3f}",
            ]
            cells += [
                f"{max(row['replay_ms']):,.0f}",
                *(
                    f"{row[name] / MIB:.0f}"
                    for name in ("rss_started_bytes", "rss_loaded_bytes", "peak_bytes")
                ),
            ]
            cells += [
                f"{row['read_iops']:,.0f}",
                f"{row['wrong']} / {row['right'] + row['wrong']:,}",
            ]
            held = max(1, restart.cached_bytes(row["status"]))
            cells += [
                f"{row['peak_bytes'] / held * 1024:.2f}",
                f"{restart.metadata_bytes(row['status']) / held * 1024:.2f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]
