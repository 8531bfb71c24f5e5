"""A `forebay` process that a test starts by hand and ends by its process id."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import time

import nbd

START_LIMIT_S = 30
STOP_LIMIT_S = 30


class Server:
    """The process, its sockets, its devices. Can be killed and started again."""

    def __init__(self, case, command, nbd_socket, control, devices, environment=None):
        self.case = case
        self.command = [str(word) for word in command]
        self.socket = pathlib.Path(nbd_socket)
        self.control = pathlib.Path(control)
        self.devices = [pathlib.Path(device) for device in devices]
        self.environment = environment
        # Descriptors that it inherits.
        self.inherits = ()
        self.process = None
        self.log = case.dir / f"server{len(case.servers)}.log"
        # How much of the log is of earlier starts.
        self.said_before = 0
        case.servers.append(self)
        case.later(self.end)

    # Life.

    def start(self, *more):
        """Starts it and waits until it answers. Fails if it ends instead."""
        self.spawn(*more)
        deadline = time.monotonic() + START_LIMIT_S
        while not self.answers():
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the server ended with {self.process.returncode} instead of serving"
                )
            if time.monotonic() > deadline:
                raise AssertionError(f"the server does not answer after {START_LIMIT_S} s")
            time.sleep(0.02)
        return self

    def spawn(self, *more):
        assert self.process is None or self.process.poll() is not None, "already running"
        print("$", " ".join(self.command + list(more)), "&", flush=True)
        self.said_before = len(self.log_text())
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command + list(more), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=self.env(), pass_fds=self.inherits,
            )

    def env(self):
        """This environment, and what was given for this server."""
        return {**os.environ, **self.environment} if self.environment else None

    def answers(self):
        """Whether the server greets on its NBD socket. A socket left by a killed server refuses the
        connection."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(5)
            try:
                probe.connect(str(self.socket))
                return probe.recv(8) == b"NBDMAGIC"
            except OSError:
                return False

    @property
    def pid(self):
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self, number=signal.SIGKILL):
        """Takes the process away at once."""
        self.process.send_signal(number)
        self.process.wait()

    def stop(self, number=signal.SIGTERM):
        """Asks it to end and expects that it does so cleanly."""
        self.process.send_signal(number)
        status = self.process.wait(STOP_LIMIT_S)
        assert status == 0, f"ended with {status} after signal {number}"

    def end(self):
        """Ends it in any state it may be in."""
        if self.alive():
            self.process.terminate()
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError("the server did not end on SIGTERM") from None
        assert "panicked" not in self.log_text(), "the server panicked"

    def says(self, *words, within=30):
        """Waits until all of these are in what it has said since its last start, which is returned.
        Some of that comes after what it tells of, or after it answers clients."""
        deadline = time.monotonic() + within
        while True:
            over = not self.alive() or time.monotonic() > deadline
            text = self.log_text()[self.said_before :]
            missing = [word for word in words if word not in text]
            if not missing:
                return text
            assert not over, f"it does not say {missing}:\n{text[-3000:]}"
            time.sleep(0.05)

    def log_text(self):
        """All that it has said by now. What is expected is waited for by `says`."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def memory_peak_bytes(self):
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmHWM")

    # Clients.

    def uri(self, export="vol0"):
        return f"nbd+unix:///{export}?socket={self.socket}"

    def connect(self, export="vol0", structured=True, contexts=("base:allocation",), strict=True):
        """A libnbd handle, connected. Without `strict` libnbd sends what it knows to be wrong."""
        handle = nbd.NBD()
        handle.set_export_name(export)
        handle.set_request_structured_replies(structured)
        if not strict:
            handle.set_strict_mode(0)
        if structured:
            for context in contexts:
                handle.add_meta_context(context)
        handle.connect_unix(str(self.socket))
        return handle

    def raw(self):
        """A bare socket, for what no decent client sends."""
        bare = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bare.settimeout(20)
        bare.connect(str(self.socket))
        return bare

    # The command.

    def status(self):
        done = self.case.forebay("status", "--json", "--socket", self.control)
        return json.loads(done.stdout)

    def device_errors(self):
        """The devices' error counters, summed."""
        total = {"read": 0, "write": 0, "checksum": 0, "healed": 0}
        for device in self.status()["pool"]["devices"]:
            for name in total:
                total[name] += device["errors"][name]
        return total

    def volume(self, *arguments, **more):
        if arguments[0] == "delete":
            arguments = (*arguments, "--yes")
        return self.case.forebay("volume", *arguments, "--socket", self.control, **more)

    def cache(self, *arguments, **more):
        return self.case.forebay("cache", *arguments, "--socket", self.control, **more)

    def settle(self):
        """Brings everything to the pool, where a cache is between."""
        if self.status().get("cache"):
            self.cache("flush")

    def check(self, *, data=True, ok=(0,)):
        """The offline check; the server must not be running."""
        assert not self.alive()
        listed = [word for device in self.devices for word in ("--device", device)]
        cache = self.cache_file()
        named = ["--cache", cache] if cache and cache.exists() else []
        return self.case.forebay("check", *(["--data"] if data else []), *listed, *named, ok=ok)

    def cache_file(self):
        """Where its cache is, if it has one."""
        words = dict(zip(self.command, self.command[1:]))
        if words.get("--cache-size") == "0":
            return None
        if "--cache" in words:
            return pathlib.Path(words["--cache"])
        return pathlib.Path(self.command[2]) / "cache.img" if self.command[1] == "up" else None

    def restart(self):
        """Ends it cleanly and starts it again."""
        self.stop()
        return self.start()


def errno_of(action):
    """The NBD error of a libnbd call as an errno, or 0 if it succeeded."""
    try:
        action()
    except nbd.Error as error:
        return error.errnum or -1
    return 0


def expect_error(wanted, action):
    got = errno_of(action)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    names = " or ".join(os.strerror(number) for number in wanted)
    assert got in wanted, f"expected {names}, got {os.strerror(got) if got > 0 else got}"
