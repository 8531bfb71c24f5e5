"""The servers that are compared: how each is prepared, started, watched and ended."""

import os
import pathlib
import signal
import socket
import subprocess
import time

import fio

GIB = 1 << 30
START_LIMIT_S = 60


class Server:
    """A server process with a file of its own."""

    name = ""
    export = ""

    def __init__(self, work, size_gib, options):
        self.bin = options.bin
        self.size = size_gib * GIB
        self.file = work / f"{self.name.replace(' ', '-')}.img"
        self.socket = work / f"{self.name.replace(' ', '-')}.sock"
        self.control = work / "control.sock"
        self.process = None
        self.prepare()

    @property
    def pid(self):
        return self.process.pid if self.process else None

    def prepare(self):
        self.fill_file()
        self.spawn(self.command())

    def fill_file(self):
        fio.fill(([f"--filename={self.file}", "--ioengine=io_uring", "--direct=1"], self.size))

    def spawn(self, command):
        """Starts it and waits for its greeting."""
        log = open(f"{self.socket}.log", "ab")
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while not self.greets():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not serve:\n" + pathlib.Path(f"{self.socket}.log").read_text(errors="replace")[-2000:])
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
        return ["--ioengine=nbd", f"--uri=nbd+unix:///{self.export}?socket={self.socket}"], self.size

    def warm(self):
        """Brings a page cache, where one is used, to the state of a server that has run for a while."""

    def settle(self):
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

    def memory_peak_bytes(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmHWM")

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Forebay(Server):
    """A pool of one copy with room for copy-on-write, filled through NBD; O_DIRECT where the file takes it."""

    name = "forebay"
    export = "bench"

    def prepare(self):
        with open(self.file, "wb") as file:
            file.truncate(self.size * 2 + GIB)
        self.call("create", "--device", self.file, "--copies", "1")
        self.spawn(self.command())
        self.call("volume", "create", self.export, "--size", str(self.size), "--socket", self.control)
        fio.fill(self.fio_target())

    def call(self, *words):
        subprocess.run([self.bin, *map(str, words)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)

    def command(self):
        return [self.bin, "serve", "--device", self.file, "--nbd-socket", self.socket, "--socket", self.control]


class QemuNbd(Server):
    name = "qemu-nbd"

    def command(self):
        return ["qemu-nbd", "--aio=io_uring", "--cache=none", "-f", "raw", "-t", "-e", "8", "-k", self.socket, self.file]


class Nbdkit(Server):
    name = "nbdkit"
    more = ()

    def command(self):
        return ["nbdkit", "--foreground", "--exit-with-parent", "-U", self.socket, "file", self.file, *self.more]

    def warm(self):
        with open(self.file, "rb", buffering=0) as file:
            while file.read(1 << 22):
                pass


class NbdkitUncached(Nbdkit):
    name = "nbdkit cache=none"
    more = ("cache=none",)

    def warm(self):
        pass


class Raw(Server):
    """No server: the file itself, by io_uring and O_DIRECT."""

    name = "raw"

    def prepare(self):
        self.fill_file()

    def fio_target(self):
        return [f"--filename={self.file}", "--ioengine=io_uring", "--direct=1"], self.size


KINDS = {"forebay": Forebay, "qemu-nbd": QemuNbd, "nbdkit": Nbdkit, "nbdkit-nocache": NbdkitUncached, "raw": Raw}
