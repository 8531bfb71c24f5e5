"""One running test: its directory, the programs it needs, what must be undone when it ends, however
it ends.

Faults: a test may fail, hang (the runner sends SIGTERM at its limit) or be interrupted. In each
case the clean-up runs, last registered first, so that mounts and loop devices never outlive their
server.
"""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import traceback

from . import schema, server

DEFAULT_LIMIT_S = 60
# Of tests that run with a cache and do not choose it: small, so that what they write does not stay
# in it.
CACHE_SIZE = "64M"
SHM = pathlib.Path("/dev/shm")
# Where Debian keeps mkfs, losetup and the like, which a user's PATH does not name.
os.environ["PATH"] += ":/usr/sbin:/sbin"
# The clients' messages are compared in places.
os.environ["LC_ALL"] = "C"


class Skip(Exception):
    """This machine cannot run the test; the message says why."""


class Stopped(BaseException):
    """The runner's SIGTERM."""


def limit(seconds):
    """Sets the time limit of a test."""

    def mark(function):
        function.limit_s = seconds
        return function

    return mark


def limit_of(function):
    return getattr(function, "limit_s", DEFAULT_LIMIT_S)


def pool_only(function):
    """Marks a test that looks into the pool's devices, or at what the command does without a
    cache."""
    function.variants = (False,)
    return function


def cache_only(function):
    """Marks a test of the cache itself; it says itself what cache it wants."""
    function.variants = (True,)
    return function


def once(function):
    """Marks a test that runs once: it says itself which caches it wants."""
    function.variants = (False,)
    return function


def variants_of(function):
    """Whether it runs without a cache, with one, or both."""
    return getattr(function, "variants", (False, True))


def execute(function, case):
    """Runs one test to its exit status."""

    def stop(_number, _frame):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        function(case)
        status = 0
    except Skip as reason:
        print(f"skipped: {reason}")
        status = 77
    except BaseException:
        traceback.print_exc()
        status = 1
    if not case.undo_all():
        status = status or 1
    if status == 1:
        case.show_logs()
    return status


class Case:
    """What a test function gets."""

    def __init__(self, directory, options, cached):
        self.dir = pathlib.Path(directory)
        self.bin = options.bin
        self.downloads = options.downloads
        self.cached = cached
        self.undo = []
        self.servers = []

    # What the machine must have.

    def need(self, *commands):
        for command in commands:
            if shutil.which(command) is None:
                raise Skip(f"{command} is not installed")

    def as_root(self):
        """The prefix that makes a command run as root."""
        if os.geteuid() == 0:
            return []
        if shutil.which("sudo") and subprocess.run(
            ["sudo", "-n", "true"], capture_output=True, check=False
        ).returncode == 0:
            return ["sudo", "-n"]
        raise Skip("needs root, or sudo without a password")

    def memory(self):
        """A directory in memory, which is gone when the test ends: files there wait for no disk."""
        if not SHM.is_dir():
            raise Skip(f"needs {SHM}")
        made = pathlib.Path(tempfile.mkdtemp(prefix="forebay-", dir=SHM))
        self.later(lambda: shutil.rmtree(made))
        return made

    # Clean-up.

    def later(self, action):
        """Runs the action when the test ends, before those registered earlier."""
        self.undo.append(action)

    def undo_all(self):
        fine = True
        while self.undo:
            try:
                self.undo.pop()()
            except Exception:
                traceback.print_exc()
                fine = False
        return fine

    def show_logs(self):
        for one in self.servers:
            print(f"--- log of {' '.join(map(str, one.command[1:]))}")
            print("\n".join(one.log_text().splitlines()[-40:]))

    # Programs.

    def run(self, *command, ok=(0,), timeout=120, **more):
        """Runs a program, says what it did, returns it with text output. Any other exit status than
        those in `ok` fails the test."""
        command = [str(word) for word in command]
        print("$", " ".join(command)[:400], flush=True)
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", timeout=timeout, check=False, **more,
        )
        if done.returncode not in ok:
            print(done.stdout[-4000:] + done.stderr[-4000:])
            raise AssertionError(f"{command[0]} ended with {done.returncode}")
        return done

    def refused(self, *command, saying=(), timeout=60):
        """Runs a program that must refuse: a plain error exit (no signal, no panic) whose message
        holds one of the words."""
        done = self.run(*command, ok=range(1, 101), timeout=timeout)
        text = done.stderr + done.stdout
        print(text[-2000:])
        assert "panicked" not in text, "it panicked"
        assert not saying or any(word.lower() in text.lower() for word in saying), (
            f"none of {saying} in the message"
        )
        return text

    def forebay(self, *arguments, **more):
        """Runs a command. What it prints with --json is what the API's document says."""
        done = self.run(self.bin, *arguments, **more)
        if done.returncode == 0:
            schema.check_printed(arguments, done.stdout)
        return done

    # Servers.

    def up(self, *arguments, directory="data", size="16G", volume_size="8G", **more):
        """`forebay up` in a directory of its own. Without a word about it with a small cache, or
        none, as the test is run."""
        home = self.dir / directory
        if "--cache-size" not in arguments:
            arguments = (*arguments, "--cache-size", CACHE_SIZE if self.cached else "0")
        command = [self.bin, "up", home, "--size", size, "--volume-size", volume_size, *arguments]
        one = server.Server(
            self,
            command,
            home / "nbd.sock",
            home / "control.sock",
            [home / "pool0.img", home / "pool1.img"],
        )
        return one.start() if more.get("start", True) else one

    def devices(self, *sizes):
        """Sparse files to make a pool of."""
        made = []
        for number, size in enumerate(sizes):
            path = self.dir / f"device{number}.img"
            with open(path, "wb") as file:
                file.truncate(size)
            made.append(path)
        return made

    def serve(self, devices, *arguments, start=True):
        """`forebay serve` on these devices, behind a cache next to them, if the test is run with
        one."""
        if self.cached and devices and "--cache" not in arguments:
            cache = sorted({path.with_suffix(".cache") for path in devices})[0]
            arguments = (*arguments, "--cache", cache, "--cache-size", CACHE_SIZE)
        listed = [word for device in devices for word in ("--device", device)]
        nbd_socket, control = self.dir / "nbd.sock", self.dir / "control.sock"
        command = [
            self.bin, "serve", *listed, "--nbd-socket", nbd_socket, "--socket", control, *arguments,
        ]
        one = server.Server(self, command, nbd_socket, control, list(devices))
        return one.start() if start else one
