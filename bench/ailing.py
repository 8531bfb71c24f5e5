"""`ailing`: a load that goes on while the pool's device is ill: ten times slower for a while, well
again, stopped for a while, well again.

The load is that of `streams`: sequential writes of 60 KiB beside random ones of 4 KiB, about
25 MB/s, half of what the device can do while it is well. The device is a file of nbdfuse, over
nbdkit with its filters `rate` and `pause`, which are told at run time what to do.

With room in the cache no write should wait for such a device. Without room, writes go at the speed
of the device; once it is well and what had to wait outside was sent, they should be fast again.
"""

import contextlib
import pathlib
import shutil
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import replay
import steady
import synthetic
import up

WELL, SLOW, STOPPED = "well", "ten times slower", "stopped"
PHASES = ((WELL, 20), (SLOW, 20), (WELL, 45), (STOPPED, 20), (WELL, 45))
SECONDS = sum(seconds for _, seconds in PHASES)
BITS_PER_S = {WELL: 400_000_000, SLOW: 40_000_000}
POOL_SIZE = 8 << 30
VOLUME_SIZE = 4 << 30
# A request that is sent so long after its due time had to wait outside.
LATE_S = 0.01
START_LIMIT_S = 30


def why_not():
    """Why this cannot be measured here; None if it can."""
    missing = [name for name in ("nbdkit", "nbdfuse") if not shutil.which(name)]
    if missing:
        return f"{' and '.join(missing)} missing"
    return None if pathlib.Path("/dev/fuse").exists() else "no /dev/fuse"


class Device:
    """A file of a device whose health is told by [`Device.become`]."""

    def __init__(self, directory):
        self.mount = directory / "ailing.img"
        self.rate = directory / "rate"
        self.control = directory / "pause.sock"
        self.processes = contextlib.ExitStack()
        self.become(WELL)
        backing = directory / "ailing.backing"
        for path, size in ((backing, POOL_SIZE), (self.mount, 0)):
            with open(path, "wb") as file:
                file.truncate(size)
        socket_path = directory / "ailing.sock"
        filters = ["--filter=pause", "--filter=rate"]
        told = [f"pause-control={self.control}", f"rate-file={self.rate}"]
        try:
            self.start(
                ["nbdkit", "-f", "-U", socket_path, *filters, "file", backing, *told],
                lambda: socket_path.exists() and self.control.exists(),
            )
            self.start(
                ["nbdfuse", self.mount, f"nbd+unix:///?socket={socket_path}"],
                lambda: self.mount.stat().st_size == POOL_SIZE,
            )
        except BaseException:
            self.discard()
            raise

    def start(self, command, is_up):
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
        self.processes.callback(end, process)
        deadline = time.monotonic() + START_LIMIT_S
        while not is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not serve")
            time.sleep(0.01)

    def become(self, health):
        if health != STOPPED:
            # Renamed into place: the filter must not read half of it.
            new = self.rate.with_suffix(".new")
            new.write_text(f"{BITS_PER_S[health]}\n")
            new.rename(self.rate)
        if self.control.exists():
            self.tell(b"p" if health == STOPPED else b"r")

    def tell(self, letter):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as told:
            told.connect(str(self.control))
            told.sendall(letter)
            if told.recv(1) != letter.upper():
                raise RuntimeError(f"nbdkit's filter pause does not obey {letter}")

    def discard(self):
        self.processes.close()


def end(process):
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Ailing(up.Up):
    """A server whose pool has such a device alone."""

    device = None

    def prepare(self, settings, filled):
        self.size = VOLUME_SIZE
        self.device = Device(self.directory)
        device = ["--device", self.device.mount]
        cache = ["--cache", self.cache_file, "--cache-size", self.cache_bytes]
        sockets = ["--nbd-socket", self.socket, "--socket", self.control]
        self.call("create", *device, "--copies", "1")
        self.spawn([self.bin, "serve", *device, *cache, *sockets])
        size = ["--size", VOLUME_SIZE]
        self.call("volume", "create", self.export, *size, "--socket", self.control)

    def call(self, *words):
        command = [str(word) for word in (self.bin, *words)]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        subprocess.run(command, **quiet, check=True)

    def discard(self):
        self.kill()
        if self.device:
            self.device.discard()
        super().discard()


def follow(device):
    """Takes the device through its phases, from now on."""
    began, until = time.monotonic(), 0
    for health, seconds in PHASES:
        if until:
            device.become(health)
        until += seconds
        time.sleep(max(0, began + until - time.monotonic()))


def measure(options, work, cache_bytes, every_s):
    requests = synthetic.streams(seconds=SECONDS, size=VOLUME_SIZE)
    server = Ailing(options, work, cache_bytes)
    try:
        with steady.Watch(server, every_s) as watch, ThreadPoolExecutor(1) as beside:
            course = beside.submit(follow, server.device)
            answered = replay.replayed(server.uri, requests, speedup=1)
            course.result()
        status = server.cache_status()
    finally:
        server.discard()
    return replay.figures(answered, 1) | {
        "cache_bytes": cache_bytes, "samples": watch.samples, "status": status,
        "phases": phases(answered, watch.samples),
    }


def phases(answered, samples):
    """Figures of the writes that were sent in each phase, though they may have been answered in
    a later one. `calm_s`, of a phase in which the device
    is well: from its begin until requests were sent on time again; `then_ms`: the longest write
    that was sent later and two passes later."""
    found, begin = [], 0.0
    for health, seconds in PHASES:
        end = begin + seconds
        sent = [entry for entry in answered if begin <= entry[2] < end]
        took = replay.latency([(entry[3] - entry[2]) * 1e3 for entry in sent])
        row = {"health": health, "begin_s": begin} | took
        at = [sample for sample in samples if begin <= sample["at_s"] < end]
        row["most_dirty"] = max((sample["dirty_share"] for sample in at), default=0.0)
        if health == WELL:
            late = [entry[2] for entry in sent if entry[2] - entry[1] > LATE_S]
            calm = max(late, default=begin)
            row["calm_s"] = calm - begin
            row["then_ms"] = longest(sent, calm)
            row["after_two_passes_ms"] = longest(sent, passed(samples, calm, 2))
        found.append(row)
        begin = end
    return found


def longest(answered, since):
    return max(
        ((entry[3] - entry[2]) * 1e3 for entry in answered if entry[2] > since), default=None
    )


def passed(samples, since, passes):
    """When so many passes had been published after a moment, or nothing was dirty."""
    later = [sample for sample in samples if sample["at_s"] >= since]
    for sample in later:
        if sample["passes"] >= later[0]["passes"] + passes or not sample["dirty_bytes"]:
            return sample["at_s"]
    return float("inf")
