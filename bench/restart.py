"""Time to serve after `kill -9` with a full cache, the memory that takes, and whether what is read
then is right."""

import random
import shutil
import statistics
import struct
import subprocess
import sys
import time

import cached
import fio
import nbd_client
from servers import GIB

TRIES = 3
LIMIT_S = 300
BLOCK = 4096
CHECKED = 1000
WRITE_S = 5
READ_S = 20
# Volume to cache: each block of the volume is written once, so that the cache is full of single
# blocks when the last ones are.
OVER = 1.25


def measure(options, work, size):
    """Fills a cache with single blocks, then kills and starts the server again and again, with each
    setting of the index's memory."""
    size = fitting(size, work)
    server = cached.start(
        "forebay", work, options, cache_gib=size, volume_gib=size * OVER, set_gib=size,
        fill_first=False, sparse=True, emulate="",
    )
    try:
        say(f"filling a cache of {size:g} GiB with blocks of 4 KiB")
        write(server)
        full = server.cache_status()
        say(
            f"{cached_bytes(full) / GIB:.2f} GiB are cached, "
            f"{full['dirty_bytes'] / GIB:.2f} GiB of them dirty"
        )
        rows = []
        for index_memory in (None, *options.index_memory):
            server.more = ["--index-memory", index_memory] if index_memory else []
            rows.append(
                restarts(server, options.emulate) | {"index_memory": index_memory or "default"}
            )
        return {"cache_gib": size, "full": full, "rows": rows}
    finally:
        server.discard()
        server.cache_file.unlink()


def fitting(size, work):
    """What there is room for: the cache, the pool's copy of the volume, and the metadata."""
    free = shutil.disk_usage(work).free / GIB - 4
    if size * (1 + OVER * 1.3) > free:
        size = max(0.25, round(free / (1 + OVER * 1.3) * 4 - 0.5) / 4)
        say(f"there is room for a cache of {size:g} GiB")
    return size


def write(server, seconds=None):
    """Every block once in random order, or some for so long, and a flush: each holds its own
    offset."""
    words, size = server.fio_target()
    command = [
        "fio", "--name=fill", *words, "--rw=randwrite", "--bs=4k", "--iodepth=32", f"--size={size}",
        "--verify=pattern", "--verify_pattern=%o", "--do_verify=0", "--verify_state_save=0",
        "--end_fsync=1", "--output-format=json",
    ]
    if seconds:
        return fio.call(
            [*command, "--norandommap", "--randrepeat=0", "--time_based", f"--runtime={seconds}"]
        )
    return fio.call([*command, "--random_generator=lfsr"])


def restarts(server, emulate):
    """Several starts in front of the slow disk, and one more without its slowness: then so many
    reads can be done that the index is in memory."""
    times, replays, right, wrong = [], [], 0, 0
    server.emulate = emulate
    for number in range(TRIES):
        if number:
            write(server, WRITE_S)
        times.append(kill_and_start(server))
        started = server.memory_bytes("VmRSS")
        replays.append(server.cache_status()["replay"])
        found = check(server)
        right, wrong = right + found[0], wrong + found[1]
        say(
            f"serving after {times[-1]:.3f} s, {started >> 20} MiB; "
            f"{wrong} of {right + wrong} blocks are wrong"
        )
    server.emulate = ""
    kill_and_start(server)
    load = fio.run(server.fio_target(), rw="randread", block="4k", depth=32, jobs=1, seconds=READ_S)
    found = check(server)
    status, loaded, peak = (
        server.cache_status(),
        server.memory_bytes("VmRSS"),
        server.memory_bytes("VmHWM"),
    )
    say(
        f"{loaded >> 20} MiB after {load['requests']:,} reads at {load['iops']:,.0f} a second; "
        f"{found[1]} wrong"
    )
    return {
        "times_s": times, "median_s": statistics.median(times), "max_s": max(times),
        "replay_ms": [replay["took_ms"] for replay in replays],
        "replay_entries": [replay["entries"] for replay in replays], "rss_started_bytes": started,
        "rss_loaded_bytes": loaded, "peak_bytes": peak, "reads": load["requests"],
        "read_iops": load["iops"], "right": right + found[0], "wrong": wrong + found[1],
        "status": status,
    }


def kill_and_start(server):
    """Seconds from exec to the first reply."""
    server.process.kill()
    server.process.wait()
    began = time.monotonic()
    with open(f"{server.socket}.log", "ab") as log:
        server.process = subprocess.Popen(
            [str(word) for word in server.command()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    while not nbd_client.first_reply(server.socket, server.export):
        if server.process.poll() is not None or time.monotonic() - began > LIMIT_S:
            raise RuntimeError("the server does not come back")
        time.sleep(0.001)
    return time.monotonic() - began


def check(server):
    """Reads blocks here and there and compares; how many are right and wrong."""
    wrong = 0
    with nbd_client.Client(server.socket, server.export) as client:
        for _ in range(CHECKED):
            offset = random.randrange(server.size // BLOCK) * BLOCK
            wrong += client.read(offset, BLOCK) != struct.pack("<Q", offset) * (BLOCK // 8)
    return CHECKED - wrong, wrong


def cached_bytes(status):
    return status["dirty_bytes"] + status["clean_bytes"]


def metadata_bytes(status):
    """The buckets that hold the index; the rest of the metadata (journal, tables) is of fixed
    size."""
    buckets = status["buckets"]
    return buckets["metadata"] * status["size_bytes"] // max(1, sum(buckets.values()))


def say(text):
    print(f"{time.strftime('%H:%M:%S')} restart: {text}", file=sys.stderr, flush=True)
