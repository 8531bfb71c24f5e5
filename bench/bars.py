"""The bars that the project has set itself: what was measured beside each, met or missed."""


class Bars:
    def __init__(self):
        self.rows = []

    def least(self, what, value, bar):
        self.rows.append(
            {"what": what, "value": value, "bar": bar, "kind": "at least", "met": value >= bar}
        )

    def most(self, what, value, bar):
        self.rows.append(
            {"what": what, "value": value, "bar": bar, "kind": "at most", "met": value <= bar}
        )

    def markdown(self):
        if not self.rows:
            return []
        met = sum(row["met"] for row in self.rows)
        lines = [
            "## Bars", "", f"{met} of {len(self.rows)} are met.", "", "| what | measured | bar | |",
            "| --- | ---: | ---: | --- |",
        ]
        for row in self.rows:
            lines.append(
                f"| {row['what']} | {row['value']:.2f} | {row['kind']} {row['bar']:.2f} | "
                f"{'met' if row['met'] else '**missed**'} |"
            )
        return [*lines, ""]


def of_pool(table, results):
    """The bars of a pool without a cache, from the runs of bench/run."""
    bars = Bars()
    for backing in ("disk", "shm"):
        for connections in sorted({key[2] for key in table.medians}):
            of_reads_and_writes(bars, table, backing, connections)
    for backing, peaks in results["memory"].items():
        if "forebay" in peaks:
            bars.most(f"resident memory, {backing}, MiB", peaks["forebay"] / (1 << 20), 200)
    for row in results["start"]:
        bars.most(f"start with {row['gib']} GiB {row['how']}, s (worst)", row["max_s"], 1)
    for row in results["scrub"]:
        ours, at = row["forebay"], f"scrub of two copies, {row['backing']}"
        bars.least(
            f"{at}: rate to fio's sequential read", ours["mb_per_s"] / row["fio"]["mb_per_s"], 0.95
        )
        if "btrfs" in row:
            bars.least(
                f"{at}: rate to kernel btrfs", ours["mb_per_s"] / row["btrfs"]["mb_per_s"], 1.1
            )
            bars.most(
                f"{at}: CPU a GiB to that of btrfs",
                ours["cpu_s_per_gib"] / max(row["btrfs"]["cpu_s_per_gib"], 1e-9),
                1,
            )
        bars.most(f"{at}: memory that it adds, MiB", ours["memory_mib"], 32)
    for row in results["loaded"]:
        one, other, at = row["without"], row["with"], f"clients beside a scrub, {row['backing']}"
        bars.most(f"{at}: P99 to that without", other["p99_ms"] / one["p99_ms"], 1.5)
        if min(one["requests"], other["requests"]) >= LEAST_REQUESTS:
            bars.most(f"{at}: P99.9 to that without", other["p999_ms"] / one["p999_ms"], 2)
        bars.least(f"{at}: share of the scrub that was done", row["done_share"], 1)
        bars.most(f"{at}: pausing it, s", other["pause_s"], 1)
        bars.most(
            f"{at}: time of the scrub to that of an idle one", other["scrub_s"] / row["idle_s"], 4
        )
    for row in results["moves"]:
        limit, full = min(row[name]["mb_per_s"] for name in ("read", "write")), row["resync_all"]
        bars.least(
            f"replace, {row['backing']}: rate to the slower of reads and writes",
            row["replace"]["mb_per_s"] / limit,
            0.9,
        )
        bars.least(
            f"resync of all, {row['backing']}: rate to the slower of reads and writes",
            full["mb_per_s"] / limit,
            0.9,
        )
        bars.most(
            f"resync of 1 %, {row['backing']}: time to that of all",
            row["resync"]["seconds"] / full["seconds"],
            0.03,
        )
    return bars


def of_reads_and_writes(bars, table, backing, connections):
    at = f"{backing}, {connections} connection{'s' if connections > 1 else ''}"

    def four(workload):
        return [
            table.get(backing, workload, connections, server)
            for server in ("forebay", "qemu-nbd", "nbdkit", "nbdkit cache=none")
        ]

    ours, qemu, nbdkit, _ = four("randread-d32")
    if ours and qemu:
        bars.least(
            f"random read, depth 32, {at}: rate to qemu-nbd", ours["iops"] / qemu["iops"], 1.1
        )
    if ours and nbdkit:
        bars.least(
            f"random read, depth 32, {at}: rate to nbdkit", ours["iops"] / nbdkit["iops"], 0.75
        )
        bars.most(
            f"random read, depth 32, {at}: CPU a request to nbdkit",
            ours["cpu_s_per_100k"] / max(nbdkit["cpu_s_per_100k"], 1e-9),
            1,
        )
    if ours and qemu and nbdkit:
        bars.most(
            f"random read, depth 32, {at}: P99 to the lower peer",
            ours["p99_us"] / min(qemu["p99_us"], nbdkit["p99_us"]),
            1,
        )
    for workload in ("randread-d1", "randwrite-d1"):
        ours, qemu, _, _ = four(workload)
        if ours and qemu:
            bars.most(
                f"{workload}, {at}: median latency to qemu-nbd",
                ours["p50_us"] / qemu["p50_us"],
                1.1,
            )
    for workload in ("seqread-d8", "seqwrite-d8", "seqwrite-d8-sparse"):
        ours, qemu, nbdkit, uncached = four(workload)
        # nbdkit's default may answer from the page cache, faster than the device is; so both are
        # said.
        for peers, words in (
            ((qemu, nbdkit, uncached), "best peer"),
            ((qemu, uncached), "best peer without page cache"),
        ):
            rates = [peer["mb_per_s"] for peer in peers if peer]
            if ours and rates:
                bars.least(
                    f"{workload}, {at}: rate to the {words}", ours["mb_per_s"] / max(rates), 0.9
                )


def of_cache(table, results):
    """The bars of a pool behind a cache, from the runs of bench/cache.py."""
    bars = Bars()
    for backing in ("disk", "shm"):

        def found(workload, backing=backing):
            return {
                server: table.get(backing, workload, 1, server)
                for server in table.servers
                if table.get(backing, workload, 1, server)
            }

        writes, reads, synced = found("randwrite-d32"), found("randread-d32"), found("fsync-d1")
        if {"forebay", "raw"} <= writes.keys():
            bars.least(
                f"random write, depth 32, {backing}: rate to the raw device",
                writes["forebay"]["iops"] / writes["raw"]["iops"],
                1,
            )
        of_hits(bars, backing, reads)
        if {"forebay", "raw"} <= synced.keys():
            ratio = synced["forebay"]["cycle_p50_us"] / synced["raw"]["cycle_p50_us"]
            bars.most(
                f"write and flush, depth 1, {backing}: median latency to a raw write and fdatasync",
                ratio,
                1.3,
            )
        if "forebay" in synced:
            # The emulated disk needs half a revolution on average to begin anything.
            bars.most(
                (
                    f"write and flush, depth 1, {backing}: "
                    "P99 of the flush, ms (a request of the pool: 4.2)"
                ),
                synced["forebay"]["flush_p99_us"] / 1000,
                4.2,
            )
    for row in results["steady"]:
        at = f"steady random write, {row['backing']}"
        bars.least(f"{at}: lowest second to the median", row["lowest_to_median"], 0.5)
        bars.most(f"{at}: requests above 100 ms", row["above_100_ms"], 0)
        bars.most(f"{at}: age of the pool's image, s (worst)", row["max_lag_s"], 30)
    for result in results["restart"]:
        for row in result["rows"]:
            at = (
                f"restart with {result['cache_gib']:g} GiB, {result['backing']}, "
                f"index memory {row['index_memory']}"
            )
            bars.most(f"{at}: serving after, s (worst)", row["max_s"], 2)
            bars.most(f"{at}: resident memory, peak, MiB", row["peak_bytes"] / (1 << 20), 256)
            bars.most(f"{at}: wrong blocks of {row['right'] + row['wrong']:,}", row["wrong"], 0)
    of_traces(bars, results["traces"])
    of_jobs(bars, results["beside"])
    by_share = {(row["backing"], row["share"]): row["iops"] for row in results["overwrite"]}
    for (backing, share), iops in by_share.items():
        if share == 0.12:
            bars.least(
                f"random writes over 12 % of the cache, {backing}: rate to that over 5 %",
                iops / by_share[backing, 0.05],
                0.7,
            )
    for row in results["reread"]:
        bars.least(
            "reads in order after random writes, cold: rate to before", row["cold_to_before"], 0.6
        )
    return bars


# Fewer requests say nothing of P99.9.
LEAST_REQUESTS = 1000


def of_jobs(bars, rows):
    """Latencies beside jobs of the background, against those outside of them."""
    for row in rows:
        inside, outside = row["beside"], row["outside"]
        if min(inside["requests"], outside["requests"]) >= LEAST_REQUESTS:
            at = (
                f"{row['load']} over {row['share']} of the cache, depth {row['depth']}, "
                f"{row['backing']}, beside the {row['job']}"
            )
            bars.most(f"{at}: P99.9 to that outside of it", inside["P99.9"] / outside["P99.9"], 1.2)
            bars.most(
                f"{at}: longest request, ms above that outside of it",
                inside["longest"] - outside["longest"],
                10,
            )


# Size of the cache: longest write and P99.9 of writes that are allowed, in ms.
TRACE_WRITES = {2 << 30: (100, 20), 512 << 20: (500, 250)}


def of_traces(bars, rows):
    """The bars of recorded traces; synthetic loads have none."""
    rows = [row for row in rows if row["real"]]
    for row in rows:
        if row["loop"] == "open" and row["cache_bytes"] in TRACE_WRITES:
            at = f"{row['load']}, cache of {row['cache']}, shift {row['shift']}"
            longest, p999 = TRACE_WRITES[row["cache_bytes"]]
            writes = row["kinds"]["writes"]
            bars.most(f"{at}: longest write, ms", writes["max_ms"], longest)
            bars.most(f"{at}: P99.9 of writes, ms", writes["p999_ms"], p999)
    for name in dict.fromkeys(row["load"] for row in rows):
        times = [row["seconds"] for row in rows if row["load"] == name and row["loop"] == "closed"]
        if times:
            at = f"{name}, closed loop, {len(times)} runs"
            bars.most(f"{at}: slowest to fastest", max(times) / min(times), 1.3)
            bars.most(f"{at}: slowest, s", max(times), 25)


def of_hits(bars, backing, reads):
    ours, raw, plain = (reads.get(server) for server in ("forebay", "raw", "nbdkit"))
    if not ours:
        return
    at = f"random read, all hits, depth 32, {backing}"
    bars.least(f"{at}: share of hits", ours["hit_ratio"], 1)
    if raw and backing == "disk":
        bars.least(f"{at}: rate to the raw device", ours["iops"] / raw["iops"], 0.75)
    if plain and backing == "shm":
        bars.least(f"{at}: rate to nbdkit's plain file", ours["iops"] / plain["iops"], 0.9)
    for peer, words in (("nbdkit cache", "in memory"), ("nbdkit cache cold", "on its disk")):
        # On /dev/shm the two are the same.
        if peer in reads and (backing == "disk" or peer == "nbdkit cache"):
            bars.least(
                f"{at}: rate to nbdkit's cache filter, {words}",
                ours["iops"] / reads[peer]["iops"],
                3,
            )
