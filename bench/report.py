"""The tables of bench/run."""

import collections
import os
import pathlib
import platform
import statistics
import subprocess

import bars
import loaded
import moves
import scrub

OURS = "forebay"


def machine():
    def first(command):
        try:
            return (
                subprocess.run(command, capture_output=True, text=True, check=False)
                .stdout.strip()
                .splitlines()[0]
            )
        except (OSError, IndexError):
            return "?"

    cpu = next(
        (
            line.split(":")[1].strip()
            for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        "?",
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": f"{os.cpu_count()} x {cpu}", "memory_gib": round(memory / (1 << 30)),
        "kernel": platform.release(), "fio": first(["fio", "--version"]),
        "nbdkit": first(["nbdkit", "--version"]), "qemu-nbd": first(["qemu-nbd", "--version"]),
    }


class Table:
    """Medians by (backing, workload, connections, server)."""

    def __init__(self, runs):
        groups = collections.defaultdict(list)
        for run in runs:
            groups[run["backing"], run["workload"], run["connections"], run["server"]].append(run)
        self.medians = {}
        for key, group in groups.items():
            self.medians[key] = {
                name: statistics.median(run[name] for run in group)
                for name, value in group[0].items()
                if isinstance(value, (int, float))
            }
        self.servers = list(dict.fromkeys(run["server"] for run in runs))

    def get(self, *key):
        return self.medians.get(key)

    def rows(self, backing):
        return list(dict.fromkeys(key[1:3] for key in self.medians if key[0] == backing))


def markdown(results):
    table = Table(results["runs"])
    lines = [
        "# Benchmark",
        "",
        *(f"- {name}: {value}" for name, value in results["machine"].items()),
    ]
    options = results["options"]
    lines += [f"- {options['rounds']} rounds of {options['seconds']} s, interleaved; medians", ""]
    for backing in dict.fromkeys(run["backing"] for run in results["runs"]):
        lines += [f"## On {'a disk' if backing == 'disk' else '/dev/shm'}", ""]
        lines += grid(table, backing, "Thousands of requests a second (sequential: MB/s)", rate)
        lines += grid(
            table,
            backing,
            "Latency, median / P99, us",
            lambda run, _: f"{run['p50_us']:,.0f} / {run['p99_us']:,.0f}",
        )
        lines += grid(
            table,
            backing,
            "Server CPU, seconds per 100,000 requests",
            lambda run, _: f"{run['cpu_s_per_100k']:.2f}",
            skip=("raw",),
        )
        lines += grid(
            table,
            backing,
            "MB/s of writes, when the flush after the run is counted",
            lambda run, _: f"{run['flushed_mb_per_s']:,.0f}",
            only="flushed_mb_per_s",
        )
        lines += flushes(table, backing)
        lines += memory(results["memory"].get(backing, {}))
    lines += (
        starts(results["start"])
        + scrub.markdown(results["scrub"])
        + loaded.markdown(results["loaded"])
        + moves.markdown(results["moves"])
    )
    found = bars.of_pool(table, results)
    results["bars"] = found.rows
    lines += found.markdown()
    return "\n".join(lines) + "\n"


def rate(run, workload):
    return f"{run['mb_per_s']:,.0f}" if workload.startswith("seq") else f"{run['iops'] / 1000:.1f}"


def grid(table, backing, title, show, skip=(), only="iops"):
    """One table: a row for each workload that has a number and each number of connections, and our
    ratio to each other server where it is a rate."""
    servers = [server for server in table.servers if server not in skip]
    ratios = (
        [server for server in servers if server != OURS] if show is rate and OURS in servers else []
    )
    head = ["workload", "connections", *servers, *(f"/ {server}" for server in ratios)]
    lines = [
        f"### {title}",
        "",
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * 2 + " ---: |" * (len(head) - 2),
    ]
    for workload, connections in table.rows(backing):
        cells = [workload, str(connections)]
        found = {server: table.get(backing, workload, connections, server) for server in servers}
        if not any(run and only in run for run in found.values()):
            continue
        cells += [show(found[server], workload) if found[server] else "" for server in servers]
        cells += [
            f"{found[OURS]['iops'] / found[server]['iops']:.2f}"
            if found[OURS] and found[server]
            else ""
            for server in ratios
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""] if len(lines) > 4 else []


def flushes(table, backing):
    lines = []
    for workload, connections in table.rows(backing):
        for server in table.servers:
            run = table.get(backing, workload, connections, server)
            if run and "flush_p50_us" in run:
                lines.append(
                    f"| {connections} | {server} | {run['flush_p50_us']:,.0f} | "
                    f"{run['flush_p99_us']:,.0f} |"
                )
    if not lines:
        return []
    return [
        "### FLUSH after every 4 KiB write, us", "", "| connections | server | median | P99 |",
        "| --- | --- | ---: | ---: |", *lines, "",
    ]


def memory(peaks):
    if not peaks:
        return []
    lines = ["### Resident memory, peak (VmHWM), MiB", "", "| server | MiB |", "| --- | ---: |"]
    return [
        *lines,
        *(f"| {server} | {peak / (1 << 20):.0f} |" for server, peak in peaks.items()),
        "",
    ]


def starts(rows):
    if not rows:
        return []
    lines = [
        "## From exec to the first NBD reply",
        "",
        "| GiB written | how | median ms | worst ms | after kill -9 ms | memory peak before, MiB |",
    ]
    lines += ["| ---: | --- | ---: | ---: | ---: | ---: |"]
    for row in rows:
        numbers = [f"{row[name] * 1000:.0f}" for name in ("median_s", "max_s", "after_kill_s")]
        lines.append(
            f"| {row['gib']} | {row['how']} | "
            + " | ".join(numbers)
            + f" | {row['memory_peak_bytes'] / (1 << 20):.0f} |"
        )
    return [*lines, ""]
