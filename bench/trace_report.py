"""The tables of the part `trace` of bench/cache.py."""

import os.path

KINDS = {"R": "reads R", "W": "whole blocks W", "w": "other writes w", "writes": "all writes"}
LATENCY = ("mean_ms", "p50_ms", "p99_ms", "p999_ms", "max_ms")
SLOWEST = 5


def markdown(rows):
    opened = [row for row in rows if row["loop"] == "open"]
    closed = [row for row in rows if row["loop"] == "closed"]
    bursts = [row for row in rows if "first_rate" in row]
    ill = [row for row in rows if "phases" in row]
    if not rows:
        return []
    ours = [row for row in opened if "status" in row]
    lines = ["## Traces and synthetic loads", "", *latencies(opened), *states(ours)]
    return [*lines, *slowest(ours), *loops(closed), *at_once(bursts), *ailing(ill)]


def table(title, names, rows, words):
    """`words`: so many columns of words come first; the others are numbers."""
    if not rows:
        return []
    lines = [f"### {title}", "", "| " + " | ".join(names) + " |"]
    lines.append("|" + " --- |" * words + " ---: |" * (len(names) - words))
    return [*lines, *("| " + " | ".join(cells) + " |" for cells in rows), ""]


def run_cells(row):
    return [row["load"], row["cache"], str(row["shift"])]


def latencies(rows):
    names = ["load", "cache", "shift", "requests"]
    names += ["count", "mean", "P50", "P99", "P99.9", "longest"]
    found = []
    for row in rows:
        for kind, words in KINDS.items():
            numbers = row["kinds"][kind]
            if numbers["count"]:
                cells = [*run_cells(row), words, f"{numbers['count']:,}"]
                found.append([*cells, *(f"{numbers[key]:.2f}" for key in LATENCY)])
    return table("Open loop: latency from sending on, ms", names, found, 4)


def states(rows):
    names = ["load", "cache", "shift", "times as fast", "s", "sent late, P99 ms", "longest"]
    names += ["most dirty, %", "oldest image, s", "passes", "picture"]
    found = []
    for row in rows:
        cells = [*run_cells(row), f"{row['speedup']:g}", f"{row['seconds']:.1f}"]
        cells += [f"{row['late'][key]:,.1f}" for key in ("p99_ms", "max_ms")]
        found.append([*cells, *watched(row), os.path.basename(row["svg"])])
    return table("Open loop: how late requests were sent, and write-back", names, found, 3)


def watched(row):
    """Of the samples of the status: the most dirty data, the oldest image, and passes."""
    samples = row["samples"]
    dirty = max((sample["dirty_share"] for sample in samples), default=0.0)
    lag = max((sample["lag_seconds"] for sample in samples), default=0.0)
    return [f"{dirty * 100:.0f}", f"{lag:.1f}", str(row["status"]["writeback"]["passes"])]


def slowest(rows):
    names = ["load", "cache", "shift", "op", "sent at s", "offset", "length", "ms"]
    found = []
    for row in rows:
        for one in row["slowest"][:SLOWEST]:
            cells = [*run_cells(row), one["op"], f"{one['at_s']:.2f}", str(one["offset"])]
            found.append([*cells, str(one["length"]), f"{one['ms']:.1f}"])
    return table(f"Open loop: the {SLOWEST} slowest requests of each run", names, found, 4)


def loops(rows):
    names = ["load", "cache", "shift", "depth", "s of each run", "slowest / fastest"]
    names += ["longest write, ms", "passes"]
    groups = {}
    for row in rows:
        groups.setdefault((row["load"], row["cache"], row["shift"], row["depth"]), []).append(row)
    found = []
    for (load, cache, shift, depth), group in groups.items():
        times = [row["seconds"] for row in group]
        cells = [load, cache, str(shift), str(depth), ", ".join(f"{time:.1f}" for time in times)]
        cells += [f"{max(times) / min(times):.2f}"]
        cells += [", ".join(f"{row['kinds']['writes']['max_ms']:.0f}" for row in group)]
        found.append([*cells, ", ".join(watched(row)[2] for row in group)])
    return table("Closed loop", names, found, 3)


def at_once(rows):
    names = ["cache", "writes a second in the first 60 %", "without write-back", "ratio"]
    names += ["lowest second / median there", "smallest second / the one before, then"]
    names += ["P99 ms", "P99.9 ms", "longest ms", "passes", "picture"]
    found, series = [], []
    for row in rows:
        cells = [row["cache"], f"{row['first_rate']:,.0f}", f"{row['reference_rate']:,.0f}"]
        cells += [f"{row['first_to_reference']:.2f}", known(row["lowest_to_median"])]
        cells += [known(row["smallest_step"]), *(f"{row[key]:.1f}" for key in LATENCY[2:])]
        found.append([*cells, watched(row)[2], os.path.basename(row["svg"])])
        for name, run in ((row["cache"], row), (f"{row['cache']}, reference", row["reference"])):
            thousands = ", ".join(f"{rate / 1000:.1f}" for rate in run["iops"])
            passes = watched(run)[2]
            whole = str(row["first_seconds"]) if run is row else ""
            series.append([name, whole, passes, thousands])
    title = "burst60: random writes of 4 KiB until 130 % of the cache"
    each = ["cache", "whole seconds in the first 60 %", "passes"]
    each += ["thousands of writes, each second"]
    return table(title, names, found, 1) + table("burst60: each second", each, series, 1)


def ailing(rows):
    names = ["cache", "the pool's device", "from s", "writes", "most dirty, %", "P99 ms"]
    names += ["P99.9 ms", "longest ms", "sent late until s", "longest then", "two passes later"]
    found = []
    for row in rows:
        for phase in row["phases"]:
            cells = [
                row["cache"],
                phase["health"],
                f"{phase['begin_s']:.0f}",
                f"{phase['count']:,}",
            ]
            cells += [f"{phase['most_dirty'] * 100:.0f}"]
            cells += [f"{phase[key]:.1f}" for key in LATENCY[2:]]
            later = ("calm_s", "then_ms", "after_two_passes_ms")
            found.append([*cells, *(known(phase.get(key)) for key in later)])
    return table("ailing: writes while the pool's device is ill", names, found, 2)


def known(number):
    return "" if number is None else f"{number:.2f}"
