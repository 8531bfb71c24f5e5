"""The part `scrub` of bench/run: how fast two copies of a volume are verified, beside a plain
sequential read of the same files, and beside kernel btrfs (RAID1 on two loop devices, as root
only).

A pool of two copies on two files, its volume written once in order. In each round the three have
their turn: fio reads both files at once (1 MiB, depth 8, io_uring, O_DIRECT), forebay scrubs, btrfs
scrubs. The rate is that of both copies together.
"""

import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import time

import control
import fio
import nbd_client
import servers
from servers import GIB

MIB = 1 << 20


def measure(options, backing, work):
    """A row: rates in MB/s, CPU seconds a GiB and MiB of memory that a scrub adds, medians; of
    memory the most."""
    size = (options.size_disk if backing == "disk" else options.size_shm) * GIB
    pool = Pool(work, size, options)
    other = Btrfs(work, size) if os.geteuid() == 0 and shutil.which("mkfs.btrfs") else None
    if other is None:
        print("btrfs is left out: it needs root, and mkfs.btrfs of btrfs-progs", file=sys.stderr)
    runs = {"fio": [], "forebay": [], "btrfs": []}
    try:
        for _ in range(options.rounds):
            runs["fio"].append(read_files(pool.files, size))
            runs["forebay"].append(pool.scrub())
            if other:
                runs["btrfs"].append(other.scrub())
    finally:
        pool.stop()
        if other:
            other.stop()
    row = {"backing": backing, "gib": size / GIB}
    for name, found in runs.items():
        if found:
            row[name] = {key: statistics.median(one[key] for one in found) for key in found[0]}
    # The first takes what later ones find in the allocator.
    row["forebay"]["memory_mib"] = max(one["memory_mib"] for one in runs["forebay"])
    return row


def read_files(files, size):
    """Both at once, as much of each as there is data."""
    command = [
        "fio", "--output-format=json", "--ioengine=io_uring", "--direct=1", "--rw=read", "--bs=1m",
        "--iodepth=8", f"--size={size}", "--group_reporting",
    ]
    for number, path in enumerate(files):
        command += [f"--name=read{number}", f"--filename={path}"]
    began, before = time.monotonic(), os.times()
    fio.call(command)
    took, after = time.monotonic() - began, os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return {"mb_per_s": 2 * size / took / 1e6, "cpu_s_per_gib": cpu / (2 * size / GIB)}


class Pool(servers.Forebay):
    """Two copies on two files, which are written through before."""

    name = "forebay-scrub"

    def __init__(self, work, size, options):
        self.bin, self.size = options.bin, size
        self.files = [work / "scrub0.img", work / "scrub1.img"]
        self.socket, self.control = work / "scrub.sock", work / "scrub.control"
        self.process = self.asks = None
        for path in self.files:
            fio.fill(
                (
                    [f"--filename={path}", "--ioengine=io_uring", "--direct=1"],
                    size + size // 4 + GIB,
                )
            )
        words = [word for path in self.files for word in ("--device", path)]
        self.call("create", *words, "--copies", "2", "--force")
        served = [word for path in self.files for word in ("--device", self.served(path))]
        self.spawn(
            [self.bin, "serve", *served, "--nbd-socket", self.socket, "--socket", self.control]
        )
        self.call("volume", "create", self.export, "--size", str(size), "--socket", self.control)
        fio.fill(self.fio_target())
        with nbd_client.Client(self.socket, self.export) as client:
            client.flush()

    def served(self, path):
        """What the server is told of a file."""
        return path

    def ask(self, request):
        # Asked many times a second: a process for each would take time of the processors from what
        # is measured.
        if self.asks is None:
            self.asks = control.Control(self.control)
        return self.asks.ask(request)

    def status(self):
        return self.ask("scrub-status")

    def stop(self):
        if self.asks is not None:
            self.asks.__exit__()
        super().stop()

    def scrub(self):
        # The peak begins anew.
        pathlib.Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        resident = self.memory_bytes("VmRSS")
        before, began = self.cpu_seconds(), time.monotonic()
        self.call("scrub", "start", "--socket", self.control)
        while (status := self.status())["state"] == "running":
            time.sleep(0.05)
        took = time.monotonic() - began
        if status["state"] != "done" or status["bad"]:
            raise RuntimeError(f"a scrub of a pool that is well: {status}")
        gib = status["verified_bytes"] / GIB
        cpu, memory = self.cpu_seconds() - before, self.memory_bytes("VmHWM") - resident
        return {
            "seconds": took,
            "mb_per_s": status["verified_bytes"] / took / 1e6,
            "cpu_s_per_gib": cpu / gib,
            "memory_mib": memory / MIB,
        }


class Btrfs:
    """RAID1 of data and metadata on two loop devices, with a file as large as the volume."""

    def __init__(self, work, size):
        self.at = work / "btrfs"
        self.at.mkdir()
        self.loops, self.mounted = [], False
        for number in range(2):
            path = work / f"btrfs{number}.img"
            fio.fill(
                (
                    [f"--filename={path}", "--ioengine=io_uring", "--direct=1"],
                    size + size // 4 + GIB,
                )
            )
            self.loops.append(run("losetup", "--find", "--show", "--direct-io=on", path).strip())
        run("mkfs.btrfs", "-q", "-f", "-d", "raid1", "-m", "raid1", *self.loops)
        run("mount", self.loops[0], self.at)
        self.mounted = True
        fio.fill(([f"--filename={self.at}/data", "--ioengine=io_uring", "--direct=1"], size))
        run("sync")

    def scrub(self):
        before, began = kernel_seconds(), time.monotonic()
        text = run("btrfs", "scrub", "start", "-B", "-R", self.at)
        took, cpu = time.monotonic() - began, kernel_seconds() - before
        numbers = dict(re.findall(r"(\w+): (\d+)", text))
        scrubbed = int(numbers["data_bytes_scrubbed"]) + int(numbers["tree_bytes_scrubbed"])
        # What the kernel did meanwhile, all of it: nothing else runs.
        return {"mb_per_s": scrubbed / took / 1e6, "cpu_s_per_gib": cpu / (scrubbed / GIB)}

    def stop(self):
        if self.mounted:
            run("umount", self.at)
        for loop in self.loops:
            run("losetup", "--detach", loop)


def kernel_seconds():
    """Time of all processors outside of user programs and of waiting."""
    fields = pathlib.Path("/proc/stat").read_text().splitlines()[0].split()
    return (int(fields[3]) + int(fields[6]) + int(fields[7])) / os.sysconf("SC_CLK_TCK")


def run(*words):
    done = subprocess.run(
        [str(word) for word in words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"{' '.join(map(str, words))} ended with {done.returncode}: {done.stderr}"
        )
    return done.stdout


def markdown(rows):
    if not rows:
        return []
    lines = [
        "## Scrub of two copies",
        "",
        (
            "| files on | GiB | fio reads, MB/s | forebay | btrfs | forebay to fio | to btrfs | "
            "CPU s a GiB: forebay | btrfs | memory, MiB |"
        ),
        "| --- |" + " ---: |" * 9,
    ]
    for row in rows:
        ours, fio_, other = row["forebay"], row["fio"], row.get("btrfs")
        cells = [
            row["backing"], f"{row['gib']:g}", f"{fio_['mb_per_s']:,.0f}",
            f"{ours['mb_per_s']:,.0f}", f"{other['mb_per_s']:,.0f}" if other else "-",
        ]
        cells += [
            f"{ours['mb_per_s'] / fio_['mb_per_s']:.2f}",
            f"{ours['mb_per_s'] / other['mb_per_s']:.2f}" if other else "-",
        ]
        cells += [f"{ours['cpu_s_per_gib']:.2f}", f"{other['cpu_s_per_gib']:.2f}" if other else "-"]
        cells.append(f"{ours['memory_mib']:.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]
