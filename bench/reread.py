"""The part `reread` of bench/cache.py: a volume that was written in order is read in order again
after random writes over it were written back.

The pool is on a slow disk, and everything is read without a cache, so all of it comes from there.
Each read follows a start of the server, so no node of the trees is in memory; *again* is the same
read right after it, with what nodes memory has room for. Random reads are timed beside it.
"""

import subprocess

import fio
import up

SIZE = 2 << 30
# Random writes of 4 KiB, in bytes.
OVERWRITTEN = 600 << 20
# All that is written has room, so one pass carries it, in the order of addresses, to one place.
CACHE = 2 << 30


def measure(options, work, seconds):
    """Rates in MB/s, and of random reads in requests a second."""
    server = Volume(options, work, CACHE, filled=SIZE)
    try:
        server.take_cache_out()
        before = read(server, seconds)
        server.restart(cache_bytes=CACHE)
        overwrite(server)
        server.take_cache_out()
        after = read(server, seconds)
    finally:
        server.discard()
    ratio = after["cold_mb_per_s"] / before["cold_mb_per_s"]
    return {"before": before, "after": after, "cold_to_before": ratio}


class Volume(up.Up):
    """A server that is started again, with a cache and without."""

    def restart(self, *, cache_bytes):
        self.stop()
        self.spawn(self.command(cache_bytes, self.emulate))

    def take_cache_out(self):
        """Writes everything back, however long it takes, and starts again without the cache."""
        command = [self.bin, "cache", "detach", "--socket", self.control]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        self.restart(cache_bytes=0)

    def range(self):
        words, _ = self.fio_target()
        return words, SIZE


def read(server, seconds):
    """In order, twice; then at random."""
    cold, again = (
        fio.run(server.range(), rw="read", block="1m", depth=8, jobs=1) for _ in range(2)
    )
    random = fio.run(server.range(), rw="randread", block="4k", depth=32, jobs=1, seconds=seconds)
    return {
        "cold_mb_per_s": cold["mb_per_s"], "again_mb_per_s": again["mb_per_s"],
        "random_iops": random["iops"], "random_p99_ms": random["p99_us"] / 1000,
    }


def overwrite(server):
    words, size = server.range()
    fio.call([
        "fio", "--name=overwrite", *words, "--rw=randwrite", "--bs=4k", "--iodepth=32",
        f"--size={size}", f"--io_size={OVERWRITTEN}", "--norandommap", "--randrepeat=0",
        "--refill_buffers", "--end_fsync=1", "--output-format=json",
    ])


def markdown(rows):
    if not rows:
        return []
    lines = ["## Reads in order after random writes were written back", ""]
    lines += [
        "| | cold, MB/s | again | random reads a second | P99 ms |",
        "| --- |" + " ---: |" * 4,
    ]
    for row in rows:
        for name in ("before", "after"):
            found = row[name]
            cells = [name, f"{found['cold_mb_per_s']:,.0f}", f"{found['again_mb_per_s']:,.0f}"]
            cells += [f"{found['random_iops']:,.0f}", f"{found['random_p99_ms']:,.0f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]
