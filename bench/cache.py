#!/usr/bin/python3
"""The write-back cache in front of a slow pool, beside its peers and the bare device.

`make bench-cache` runs it, with arguments in BENCH.

The pool is emulated as a rotating disk (`emulate=hdd`), the cache is a file on the disk or on
/dev/shm. Beside it: nbdkit with its cache filter in writeback mode, nbdkit and qemu-nbd on a file
of the fast device itself, and fio's io_uring with O_DIRECT on a file as large as the cache, the
limit. Rounds are interleaved; a server is stopped while another one has its turn. Then steady
random writes over four times the cache, drawn as a picture, restarts after `kill -9` with a full
cache, latencies beside each job of the background, reads in order after random writes, random
writes over a part of the cache, and block traces (`--trace FILE`) and synthetic loads, replayed on
fresh servers. Results: a table in Markdown and everything in JSON, in bench/out.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import beside  # noqa: E402
import blocktrace  # noqa: E402
import cache_report  # noqa: E402
import cached  # noqa: E402
import fio  # noqa: E402
import overwrite  # noqa: E402
import replay  # noqa: E402
import report  # noqa: E402
import reread  # noqa: E402
import restart  # noqa: E402
import steady  # noqa: E402
import traced  # noqa: E402

# name, fio's rw, depth, flush after each write. All of 4 KiB, all in a part of the volume that fits
# in the cache.
WORKLOADS = [
    ("randwrite-d32", "randwrite", 32, False),
    ("fsync-d1", "randwrite", 1, True),
    ("randread-d32", "randread", 32, False),
]


def main():
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    results = {
        "machine": report.machine(),
        "options": {key: str(value) for key, value in vars(options).items()}, "runs": [],
        "memory": {}, "steady": [], "restart": [], "traces": [], "beside": [], "reread": [],
        "overwrite": [],
    }
    for part in options.parts:
        for backing in options.backing:
            where = options.dir if backing == "disk" else pathlib.Path("/dev/shm")
            work = pathlib.Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=where))
            try:
                PARTS[part](options, backing, work, results)
            finally:
                shutil.rmtree(work)
            # Kept so far, should what follows fail.
            write(options, results)
    print(write(options, results))
    print(f"in {options.out}/cache.md and cache.json", file=sys.stderr)
    return 0


def arguments():
    root = HERE.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", type=pathlib.Path, default=target / "release" / "forebay")
    parser.add_argument(
        "--dir",
        type=pathlib.Path,
        default=pathlib.Path(os.environ.get("BENCH_DIR", "/var/tmp")),
        help="on the disk to measure (BENCH_DIR)",
    )
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "out")
    parser.add_argument("--parts", type=words, default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--backing", type=words, default=["disk", "shm"])
    parser.add_argument("--servers", type=words, default=list(cached.KINDS))
    parser.add_argument(
        "--emulate", default="hdd", help='the pool\'s device: hdd, ssd, or "" for what it is'
    )
    parser.add_argument("--seconds", type=float, default=3, help="of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache-disk", type=float, default=4, help="GiB of cache on the disk")
    parser.add_argument("--cache-shm", type=float, default=2, help="GiB of cache on /dev/shm")
    parser.add_argument(
        "--set", type=float, default=0.25, help="share of the cache that the workloads use"
    )
    parser.add_argument(
        "--only", type=words, default=[], help="workloads whose name contains one of these"
    )
    parser.add_argument("--steady", type=int, default=600, help="seconds of steady random writes")
    parser.add_argument(
        "--steady-cache",
        type=float,
        default=1,
        help="GiB of cache for them; the volume is four times as large",
    )
    parser.add_argument(
        "--beside",
        type=int,
        default=120,
        help="seconds of each load beside the jobs of the background",
    )
    parser.add_argument(
        "--overwrite",
        type=int,
        default=20,
        help="seconds of random writes over each part of the cache",
    )
    parser.add_argument(
        "--shares",
        type=words,
        default=[],
        help=(
            "only the loads over these parts of the cache, of 0.25, 4 and paced, "
            "with commas (part beside)"
        ),
    )
    parser.add_argument(
        "--svg",
        type=pathlib.Path,
        help=(
            "where the picture of it goes, the backing's name appended to the stem [OUT/steady.svg]"
        ),
    )
    parser.add_argument(
        "--restart-size",
        type=float,
        default=16,
        help="GiB of cache to restart with, less if there is no room",
    )
    parser.add_argument("--restart-shm", type=float, default=2, help="the same on /dev/shm")
    parser.add_argument(
        "--index-memory", type=words, default=["32M"], help="restart with this limit too"
    )
    trace_arguments(parser)
    options = parser.parse_args()
    options.bin = options.bin.resolve()
    options.svg = options.svg or options.out / "steady.svg"
    options.trace_svg = options.trace_svg or options.out / "trace.svg"
    if not options.bin.exists():
        parser.error(f"no binary at {options.bin}: run `make build`")
    if not fio.has_nbd():
        parser.error("this fio was built without the nbd engine")
    for given, known in (
        (options.servers, cached.KINDS),
        (options.parts, PARTS),
        (options.backing, ("disk", "shm")),
        (options.synthetic, traced.SYNTHETIC),
        (options.shares, beside.SHARES),
    ):
        if set(given) - set(known):
            parser.error(f"unknown: {set(given) - set(known)}; there are {list(known)}")
    if "trace" in options.parts:
        check_traces(parser, options)
    return options


def trace_arguments(parser):
    """The options of the part `trace`."""
    add, kinds = parser.add_argument, list(traced.SYNTHETIC)
    files = "CSV to replay (repeatable)"
    add("--trace", type=pathlib.Path, action="append", default=[], help=files)
    add("--trace-cache", type=sizes, default="512M,2G", help="sizes of the cache on the disk")
    add("--trace-speedup", type=float, default=40, help="of traces in the open loop")
    add("--trace-rounds", type=int, default=5, help="closed loops of each on the smallest cache")
    pictures = "where the pictures go, -NAME of the run appended to the stem [OUT/trace.svg]"
    add("--trace-svg", type=pathlib.Path, help=pictures)
    loads = f'loads to run too, of {",".join(kinds)}; "": none'
    add("--synthetic", type=words, default=kinds, help=loads)
    add("--synthetic-seconds", type=float, default=40, help="of each of bursts, streams and mixed")


def check_traces(parser, options):
    """Finds errors that would otherwise come after all the other parts."""
    if replay.nbd is None:
        parser.error("the part trace needs python3-libnbd")
    if options.trace_speedup <= 0:
        parser.error("--trace-speedup: above 0")
    for path in options.trace:
        try:
            blocktrace.read(path)
        except (OSError, ValueError) as error:
            parser.error(str(error))


def words(text):
    return [word for word in text.split(",") if word]


def sizes(text):
    """Sizes in bytes; not empty."""
    try:
        return [traced.size_bytes(word) for word in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def compare(options, backing, work, results):
    """What fits in the cache, beside the peers."""
    cache_gib = options.cache_disk if backing == "disk" else options.cache_shm
    set_gib = cache_gib * options.set
    started = []
    try:
        for kind in options.servers:
            say(f"{backing}: making {kind}")
            server = cached.start(
                kind, work, options, cache_gib=cache_gib, volume_gib=set_gib, set_gib=set_gib
            )
            started.append(server)
            # Not a stream that goes past the cache.
            fio.fill(server.set_target(), block="32k")
            server.clean()
            server.pause()
        for name, rw, depth, sync in WORKLOADS:
            if not options.only or any(word in name for word in options.only):
                workload(options, backing, started, results, (name, rw, depth, sync))
        results["memory"][backing] = {
            server.name: server.memory_bytes("VmHWM") for server in started if server.pid
        }
    finally:
        for server in started:
            server.stop()


def workload(options, backing, started, results, what):
    name, rw, depth, sync = what
    # Write-back of what the workload before has left is not measured here; the steady writes are
    # there for that.
    if rw == "randread" or sync:
        for server in started:
            server.resume()
            server.clean()
            server.pause()
    rates = {server.name: [] for server in started}
    for number in range(options.rounds):
        for server in started[number % len(started) :] + started[: number % len(started)]:
            run = measure(server, rw, depth, sync, options.seconds)
            results["runs"].append(
                run
                | {
                    "backing": backing, "workload": name, "connections": 1, "round": number,
                    "server": server.name,
                }
            )
            rates[server.name].append(run["iops"])
    say(
        f"{backing} {name}: "
        + ", ".join(f"{server} {statistics.median(found):,.0f}" for server, found in rates.items())
        + " IOPS"
    )


def measure(server, rw, depth, sync, seconds):
    server.resume()
    try:
        held = server.make_ready()
        counted, before = server.cache_status(), server.cpu_seconds()
        if sync and not server.process:
            # The bare device need not care for the file's times.
            sync = "data"
        run = fio.run(
            server.set_target(), rw=rw, block="4k", depth=depth, jobs=1, sync=sync, seconds=seconds
        )
        if rw == "randwrite":
            began = time.monotonic()
            server.settle()
            run["settle_s"] = time.monotonic() - began
            run["flushed_mb_per_s"] = run["bytes"] / (run["seconds"] + run["settle_s"]) / 1e6
        run["cpu_s_per_100k"] = (server.cpu_seconds() - before) * 100_000 / max(1, run["requests"])
        run["page_cache"] = held
        if sync:
            run["cycle_p50_us"] = run["p50_us"] + run["flush_p50_us"]
        after = server.cache_status()
        if rw == "randread" and after:
            hits, misses = (after[key] - counted[key] for key in ("hits", "misses"))
            run["hit_ratio"] = hits / max(1, hits + misses)
        return run
    finally:
        server.pause()


def write_steadily(options, backing, work, results):
    say(f"{backing}: steady random writes for {options.steady} s")
    server = cached.start(
        "forebay", work, options, cache_gib=options.steady_cache,
        volume_gib=options.steady_cache * 4, set_gib=options.steady_cache,
    )
    try:
        result = steady.measure(server, options.steady)
        result |= {
            "backing": backing,
            "cache_gib": options.steady_cache,
            "status": server.cache_status(),
            "peak_bytes": server.memory_bytes("VmHWM"),
        }
    finally:
        server.stop()
    path = options.svg.with_name(f"{options.svg.stem}-{backing}{options.svg.suffix}")
    about = (
        f"{options.steady_cache:g} GiB on {'a disk' if backing == 'disk' else '/dev/shm'}, "
        f"pool: {options.emulate or 'as it is'}"
    )
    steady.picture(result, path, about)
    results["steady"].append(result | {"svg": str(path)})
    say(
        f"{backing}: median {result['median_iops']:,.0f}, "
        f"lowest second {result['lowest_iops']:,.0f} IOPS, longest {result['max_ms']:,.0f} ms; "
        f"{path}"
    )


def watch_jobs(options, backing, work, results):
    rows = beside.measure(options, work, options.beside)
    results["beside"] += [row | {"backing": backing} for row in rows]


def write_again(options, backing, work, results):
    rows = overwrite.measure(options, work, options.overwrite)
    results["overwrite"] += [row | {"backing": backing} for row in rows]


def read_again(options, backing, work, results):
    """Once: there is no cache while it is read, and the pool is in memory anyway."""
    if backing == options.backing[0]:
        say("reads in order, before and after random writes")
        results["reread"].append(reread.measure(options, work, options.seconds))


def start_again(options, backing, work, results):
    size = options.restart_size if backing == "disk" else options.restart_shm
    if size:
        results["restart"].append(restart.measure(options, work, size) | {"backing": backing})


def replay_traces(options, backing, work, results):
    """With the cache on the disk only; the pool is in memory anyway."""
    if backing == "disk":
        traced.measure(options, work, results["traces"])


def write(options, results):
    text = cache_report.markdown(results)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cache.json").write_text(json.dumps(results, indent=1))
    (options.out / "cache.md").write_text(text)
    return text


def say(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


PARTS = {
    "compare": compare, "steady": write_steadily, "restart": start_again, "trace": replay_traces,
    "beside": watch_jobs, "reread": read_again, "overwrite": write_again,
}

if __name__ == "__main__":
    sys.exit(main())
