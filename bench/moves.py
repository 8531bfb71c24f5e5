"""The part `moves` of bench/run: how fast a device is replaced, and how fast one that was away gets
what it lacks, beside a plain sequential copy between the same files.

A pool of two copies on two files, its volume written once in order. In each round these have their
turn: fio writes a file as large as the data (1 MiB, depth 8, io_uring, O_DIRECT), a device is
replaced by a new one, and a device comes back after one block in a hundred was written without it,
in pieces of 64 KiB at random, and then after all was. The limit of a copy is the slower of what
reads and writes; on one disk for all, reads and writes share it.
"""

import json
import statistics
import subprocess
import time

import fio
import nbd_client
import scrub
import servers
from servers import GIB

CHANGED = 0.01
# Moves that wait for longer have come to no end.
WAITS_S = 30


def measure(options, backing, work):
    """A row: rates in MB/s, seconds, and bytes copied; medians."""
    size = (options.size_disk if backing == "disk" else options.size_shm) * GIB // 2
    runs = {"read": [], "write": [], "replace": [], "resync": [], "resync_all": []}
    pool = Pool(work, size, options)
    try:
        for number in range(options.rounds):
            runs["read"].append(read_file(pool.files[0], size))
            runs["write"].append(write_file(work / "limit.img", size))
            runs["replace"].append(pool.replace(work / f"new{number}.img"))
            runs["resync"].append(pool.resync(pool.change(number)))
            runs["resync_all"].append(pool.resync(["--rw=write", "--bs=1m"]))
    finally:
        pool.stop()
    row = {"backing": backing, "gib": size / GIB}
    for name, found in runs.items():
        row[name] = {key: statistics.median(one[key] for one in found) for key in found[0]}
    return row


def read_file(path, size):
    return transfer("read", path, size)


def write_file(path, size):
    try:
        return transfer("write", path, size)
    finally:
        path.unlink(missing_ok=True)


def transfer(rw, path, size):
    command = ["fio", "--output-format=json", "--name=limit", "--ioengine=io_uring", "--direct=1"]
    command += [f"--rw={rw}", "--bs=1m", "--iodepth=8", f"--size={int(size)}", "--end_fsync=1"]
    began = time.monotonic()
    fio.call([*command, f"--filename={path}"])
    took = time.monotonic() - began
    return {"mb_per_s": size / took / 1e6, "seconds": took}


class Pool(scrub.Pool):
    """As for scrubs, and devices of it change."""

    name = "forebay-moves"

    def __init__(self, work, size, options):
        super().__init__(work, int(size), options)

    def device(self, *words):
        command = [self.bin, "device", *words, "--socket", self.control]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"forebay device {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def until_whole(self, began):
        waits = None
        while (moves := self.ask("moves-status"))["state"] != "none":
            waits = (waits or time.monotonic()) if moves["state"] == "waiting" else None
            if waits and time.monotonic() - waits > WAITS_S:
                raise RuntimeError(f"chunks that should move wait: {moves['trouble']}")
            time.sleep(0.005)
        took = time.monotonic() - began
        states = {
            device["state"] for device in json.loads(self.device("list", "--json"))["devices"]
        }
        if states != {"online"}:
            raise RuntimeError(f"devices are {states}")
        return took, moves["copied_bytes"]

    def replace(self, new):
        """The second device by a new one, of which nothing is allocated yet."""
        with open(new, "wb") as file:
            file.truncate(self.files[1].stat().st_size)
        self.until_whole(time.monotonic())
        began = time.monotonic()
        # The command sets what was copied to 0.
        self.device("replace", self.files[1], new)
        took, copied = self.until_whole(began)
        self.files[1].unlink()
        self.files[1] = new
        return {"mb_per_s": copied / took / 1e6, "seconds": took}

    def change(self, seed):
        """What writes one part in a hundred."""
        size = int(self.size * CHANGED)
        return ["--rw=randwrite", "--bs=64k", f"--randseed={seed + 1}", f"--io_size={size}"]

    def resync(self, changes):
        """The second device was away while fio wrote this."""
        self.device("offline", self.files[1])
        words, size = self.fio_target()
        command = ["fio", "--output-format=json", "--name=change", *words, *changes, "--iodepth=8"]
        fio.call([*command, f"--size={int(size)}"])
        with nbd_client.Client(self.socket, self.export) as client:
            client.flush()
        before = self.ask("moves-status")["copied_bytes"]
        began = time.monotonic()
        self.device("online", self.files[1])
        took, copied = self.until_whole(began)
        copied_mb = (copied - before) / 1e6
        return {"seconds": took, "copied_mb": copied_mb, "mb_per_s": copied_mb / took}


def markdown(rows):
    if not rows:
        return []
    lines = ["## Devices that are replaced, and that come back", ""]
    head = ["files on", "GiB", "fio reads, MB/s", "writes", "replace", "to the slower"]
    head += [
        "resync of all", "to the slower", "resync of 1 %, s", "MB copied", "of the time of all",
    ]
    lines += ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for row in rows:
        read, write, replace = (row[name]["mb_per_s"] for name in ("read", "write", "replace"))
        resync, full = row["resync"], row["resync_all"]
        cells = [row["backing"], f"{row['gib']:g}", f"{read:,.0f}", f"{write:,.0f}"]
        for copied in (replace, full["mb_per_s"]):
            cells += [f"{copied:,.0f}", f"{copied / min(read, write):.2f}"]
        share = resync["seconds"] / full["seconds"]
        cells += [f"{resync['seconds']:.2f}", f"{resync['copied_mb']:,.0f}", f"{share:.1%}"]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]
