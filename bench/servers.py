"""The servers that are compared: how each is prepared, started, watched and ended.

All files are written through once before anything is measured, the pool's too: it is written
copy-on-write, so that in a sparse file each of its writes would also pay for a fresh page or extent
of the file system, while the others overwrite. What a sparse file costs is measured by itself, with
a sparse file for each of them (`sparse`).
"""

import os
import pathlib
import signal
import socket
import subprocess
import time

import fio
import nbd_client
import pagecache

GIB = 1 << 30
START_LIMIT_S = 60


class Server:
    """A server process with a file of its own."""

    name = ""
    export = ""
    # What the page cache shall hold of the file before a run: None if it does not matter, since the
    # server goes past it.
    wants_warm = None

    def __init__(self, work, size_gib, options, sparse=False):
        self.bin = options.bin
        self.size = int(size_gib * GIB)
        self.sparse = sparse
        name = self.name.replace(" ", "-") + ("-sparse" if sparse else "")
        self.file = work / f"{name}.img"
        self.socket = work / f"{name}.sock"
        self.control = work / f"{name}.control"
        self.process = None
        self.in_memory = pagecache.is_memory(work)
        self.prepare()

    @property
    def pid(self):
        return self.process.pid if self.process else None

    def prepare(self):
        self.fill_file()
        self.spawn(self.command())

    def fill_file(self):
        self.lay_out(self.size)

    def lay_out(self, size):
        """Makes the file: written through, or sparse."""
        if self.sparse:
            with open(self.file, "wb") as file:
                file.truncate(size)
        else:
            fio.fill(([f"--filename={self.file}", "--ioengine=io_uring", "--direct=1"], size))

    def spawn(self, command):
        """Starts it and waits for its greeting."""
        # Some leave it behind.
        pathlib.Path(self.socket).unlink(missing_ok=True)
        log = open(f"{self.socket}.log", "ab")
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        deadline = time.monotonic() + START_LIMIT_S
        while not self.greets():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{self.name} does not serve:\n"
                    + pathlib.Path(f"{self.socket}.log").read_text(errors="replace")[-2000:]
                )
            time.sleep(0.01)

    def greets(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(self.socket))
                return probe.recv(8) == b"NBDMAGIC"
            except OSError:
                return False

    def fio_target(self):
        return [
            "--ioengine=nbd",
            f"--uri=nbd+unix:///{self.export}?socket={self.socket}",
        ], self.size

    def make_ready(self):
        """Brings the page cache, before each run, to the state that the server is compared in;
        returns the share of the file that it holds."""
        if self.in_memory:
            return 1.0
        if self.wants_warm is False:
            pagecache.evict(self.file)
        elif self.wants_warm and pagecache.resident(self.file) < 0.99:
            pagecache.read_in(self.file)
        held = pagecache.resident(self.file)
        if self.wants_warm is not None and (held > 0.01, held > 0.99) != (
            self.wants_warm,
            self.wants_warm,
        ):
            raise RuntimeError(f"{held:.0%} of the file of {self.name} is in the page cache")
        return held

    def settle(self):
        """Makes durable what was written: nobody's work shall be done during another one's turn."""
        if self.process:
            with nbd_client.Client(self.socket, self.export) as client:
                client.flush()
        descriptor = os.open(self.file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def cpu_seconds(self):
        """User and system time of all its threads, kernel workers of its rings included."""
        if not self.process:
            return 0.0
        fields = pathlib.Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self, what):
        """`what`: VmRSS, now, or VmHWM, the peak."""
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError(f"no {what}")

    def memory_peak_bytes(self):
        return self.memory_bytes("VmHWM")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def discard(self):
        self.stop()
        self.file.unlink(missing_ok=True)


class Forebay(Server):
    """A pool of one copy with room for copy-on-write, its volume written through NBD; O_DIRECT
    where the file takes it."""

    name = "forebay"
    export = "bench"

    def prepare(self):
        self.lay_out(self.size * 2 + GIB)
        self.call("create", "--device", self.file, "--copies", "1", "--force")
        self.spawn(self.command())
        self.call(
            "volume", "create", self.export, "--size", str(self.size), "--socket", self.control
        )
        if not self.sparse:
            fio.fill(self.fio_target())

    def call(self, *words):
        subprocess.run(
            [self.bin, *map(str, words)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=True,
        )

    def command(self):
        return [
            self.bin, "serve", "--device", self.file, "--nbd-socket", self.socket, "--socket",
            self.control,
        ]


class QemuNbd(Server):
    name = "qemu-nbd"

    def command(self):
        return [
            "qemu-nbd", "--aio=io_uring", "--cache=none", "-f", "raw", "-t", "-e", "8", "-k",
            self.socket, self.file,
        ]


class Nbdkit(Server):
    name = "nbdkit"
    wants_warm = True
    more = ()

    def command(self):
        return [
            "nbdkit", "--foreground", "--exit-with-parent", "-U", self.socket, "file", self.file,
            *self.more,
        ]


class NbdkitUncached(Nbdkit):
    name = "nbdkit cache=none"
    wants_warm = False
    more = ("cache=none",)


class Raw(Server):
    """No server: the file itself, by io_uring and O_DIRECT."""

    name = "raw"

    def prepare(self):
        self.fill_file()

    def fio_target(self):
        return [f"--filename={self.file}", "--ioengine=io_uring", "--direct=1"], self.size


KINDS = {
    "forebay": Forebay, "qemu-nbd": QemuNbd, "nbdkit": Nbdkit, "nbdkit-nocache": NbdkitUncached,
    "raw": Raw,
}
