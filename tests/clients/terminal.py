"""What people see: `forebay top` on a terminal, progress, tables of many volumes, colours, and
errors that say what to type next."""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time

from harness.case import limit, once, pool_only
from harness.data import MIB, noise

LIMIT_S = 30
EIGHTY = {**os.environ, "COLUMNS": "80"}
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# What `forebay top` sends when it takes the terminal, and when it gives it back.
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


class Terminal:
    """A program on a terminal of 80 columns and 24 lines."""

    def __init__(self, t, *command, env=()):
        self.master, self.slave = pty.openpty()
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.modes = termios.tcgetattr(self.slave)
        self.seen = ""
        base = {
            name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")
        }
        print("$ (on a terminal)", *command, flush=True)
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env={**base, "TERM": "xterm", **dict(env)}, start_new_session=True,
        )
        t.later(self.end)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def read(self, seconds=0.05):
        """Takes what has been printed meanwhile."""
        while select.select([self.master], [], [], seconds)[0]:
            try:
                self.seen += os.read(self.master, 65536).decode(errors="replace")
            except OSError as e:
                if e.errno != errno.EIO:
                    raise
                return
            seconds = 0

    def wait_for(self, is_there):
        deadline = time.monotonic() + LIMIT_S
        while not is_there(self.seen):
            assert self.process.poll() is None and time.monotonic() < deadline, self.seen[-4000:]
            self.read()
        return self.seen

    def type(self, text):
        os.write(self.master, text.encode())

    def ended(self):
        """The exit status, once the program has ended; the terminal is what it was before."""
        deadline = time.monotonic() + LIMIT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.seen[-4000:]
            self.read()
        self.read()
        assert termios.tcgetattr(self.slave) == self.modes, "the terminal is not what it was"
        return self.process.returncode


def frames(seen):
    """The pictures of `forebay top`, without escapes."""
    return [ESCAPE.sub("", frame) for frame in seen.split("\x1b[H")[1:]]


def figures(seen, row):
    """Reads and writes a second of a row in the last whole picture that has it."""
    for frame in reversed(frames(seen)[:-1]):
        found = re.search(rf"^{row} +([0-9.k]+) +[0-9.]+ \w+ +([0-9.k]+) ", frame, re.MULTILINE)
        if found:
            return found.groups()
    return None


@contextlib.contextmanager
def load(server):
    """Reads and writes of vol0, until the end."""
    stop = threading.Event()
    handle = server.connect()

    def run():
        place = 0
        while not stop.is_set():
            handle.pwrite(noise("top", 65536), place % (16 * MIB))
            handle.pread(4096, place % (16 * MIB))
            place += 65536

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@limit(120)
def test_top(t):
    """Figures of a real load, on a screen that is there for them alone; the terminal is given back
    however it ends."""
    server = t.up(size="1G", volume_size="64M")
    command = (t.bin, "top", "--every", "200ms", "--socket", server.control)

    def busy(seen):
        found = figures(seen, "vol0")
        return found and "0" not in found

    with load(server):
        top = Terminal(t, *command)
        seen = top.wait_for(busy)
        assert ENTER in seen and LEAVE not in seen
        for frame in frames(seen)[:-1]:
            lines = frame.split("\r\n")
            assert len(lines) <= 24 and all(len(line) <= 80 for line in lines), frame
        shown = frames(seen)[-2]
        for word in (
            "pool forebay: online", "IOPS", "VOLUME", "DEVICE", "pool0.img", "stalls", "q: quit",
        ):
            assert word in shown, shown
        assert ("write-back" in shown) == t.cached, shown
        top.type("\x1b[B")  # an arrow says nothing
        top.type("q")
        assert top.ended() == 0 and top.seen.rstrip().endswith(LEAVE), top.seen[-200:]
        done = t.forebay(
            "top", "--once", "--every", "300ms", "--socket", server.control, env=EIGHTY
        )
        found = re.search(r"^vol0 +([0-9.k]+) ", done.stdout, re.MULTILINE)
        assert found and found[1] != "0" and "\x1b" not in done.stdout, done.stdout
        assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    for leave, status in (
        ("\x03", 0),
        (signal.SIGTERM, -signal.SIGTERM),
        (signal.SIGHUP, -signal.SIGHUP),
    ):
        top = Terminal(t, *command)
        top.wait_for(lambda seen: "VOLUME" in seen)
        top.type(leave) if isinstance(leave, str) else top.process.send_signal(leave)
        assert top.ended() == status and LEAVE in top.seen, leave
    # A server that goes is told of, and comes back.
    top = Terminal(t, *command)
    top.wait_for(lambda seen: "VOLUME" in seen)
    server.stop()
    top.wait_for(lambda seen: "no answer for" in frames(seen)[-1])
    server.start()
    top.wait_for(
        lambda seen: len(frames(seen)) > 1 and frames(seen)[-2].rstrip().endswith("q: quit")
    )
    top.type("q")
    assert top.ended() == 0
    t.refused(*command, saying=("--once",))


@pool_only
@limit(120)
def test_a_server_that_stands_still(t):
    """What only looks ends, and says so; a change says so and waits on; `forebay top` can be
    left."""
    server = t.up(size="1G", volume_size="64M")
    ask = ("--socket", server.control)
    os.kill(server.pid, signal.SIGSTOP)
    t.later(lambda: server.pid and os.kill(server.pid, signal.SIGCONT))
    looks = [
        subprocess.Popen([t.bin, *words, *ask], stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        for words in (
            ("status",), ("status", "--json"), ("volume", "list"), ("clients",), ("config",),
            ("set",), ("explain",), ("top", "--once"), ("scrub", "status"),
        )
    ]
    change = subprocess.Popen(
        [t.bin, "volume", "create", "b", "--size", "1M", *ask], stderr=subprocess.PIPE, text=True
    )
    top = Terminal(t, t.bin, "top", *ask)
    top.wait_for(lambda seen: ENTER in seen and "waiting for the first answer" in seen)
    top.wait_for(lambda seen: "watchdog" in frames(seen)[-1])
    top.type("q")
    assert top.ended() == 0 and top.seen.rstrip().endswith(LEAVE), top.seen[-200:]
    for one in looks:
        said = one.communicate(timeout=LIMIT_S)[1].decode()
        assert one.returncode == 1 and "has not answered for 10 s" in said, (one.args, said)
        assert str(server.control) in said and "systemctl status forebay" in said, said
        assert "after two minutes" in said.splitlines()[-1], said
    said = change.stderr.readline()
    assert "has not answered for 10 s" in said and "waits on" in said, said
    assert change.poll() is None
    os.kill(server.pid, signal.SIGCONT)
    said = change.communicate(timeout=LIMIT_S)[1]
    assert change.returncode == 0 and said == "", said
    assert "b" in t.forebay("volume", "list", *ask).stdout


@pool_only
@limit(90)
def test_progress(t):
    """A bar where something takes long and somebody looks; nothing of it in a pipe."""
    server = t.up(size="1G", volume_size="64M")
    handle = server.connect()
    for place in range(0, 8 * MIB, MIB):
        handle.pwrite(noise(("progress", place), MIB), place)
    handle.flush()
    command = (t.bin, "scrub", "start", "--rate", "2M", "--wait", "--socket", server.control)
    terminal = Terminal(t, *command)
    assert terminal.ended() == 0
    bars = re.findall(
        r"scrub \[[=> ]+\] +[0-9]+ %  [^\r\n]*MiB of [^\r\n]*", ESCAPE.sub("", terminal.seen)
    )
    assert len(bars) > 2 and "no errors" in bars[-1], terminal.seen
    assert re.search(r"scrub +done", terminal.seen), terminal.seen
    # Ctrl-C ends the wait, and not the scrub.
    terminal = Terminal(t, *command)
    terminal.wait_for(lambda seen: "scrub [" in ESCAPE.sub("", seen))
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.ended() == -signal.SIGINT
    last = ESCAPE.sub("", terminal.seen).splitlines()[-1]
    assert "it goes on" in last and "forebay scrub cancel" in last, terminal.seen
    at = ("--socket", server.control)
    assert json.loads(t.forebay("scrub", "status", "--json", *at).stdout)["state"] == "running"
    t.forebay("scrub", "cancel", *at)
    done = t.run(*command)
    assert done.stderr == "" and "[=" not in done.stdout and "\x1b" not in done.stdout, done


def make_volumes(server, names):
    """Makes volumes by one connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as control:
        control.connect(str(server.control))
        replies = control.makefile("rb")
        for name in names:
            request = {
                "version": 1, "request": "volume-create", "name": name, "size_bytes": 1 << 30,
                "sector_bytes": 512,
            }
            control.sendall(json.dumps(request).encode() + b"\n")
            reply = json.loads(replies.readline())
            assert "ok" in reply, reply


@pool_only
@limit(90)
def test_many_volumes(t):
    """The busy ones are first, the rest is counted; every line fits 80 columns, or as many as there
    are; JSON has all."""
    server = t.up(size="1G", volume_size="64M")
    names = [f"{number}-{'x' * 50}-{number}" for number in range(30)] + ["漢字" * 8, "red"]
    make_volumes(server, names)
    # What would be shown as another name is none.
    odd = ("volume", "create", "\u202ered", "--size", "64M", "--socket", server.control)
    t.refused(t.bin, *odd, saying=("can be seen",))
    server.connect(names[17]).pwrite(noise("many", 65536), 0)
    server.connect("vol0")
    ask = ("--socket", server.control)
    for words in (
        ("status",),
        ("status", "--all"),
        ("volume", "list"),
        ("volume", "list", "--all"),
        ("device", "list"),
        ("clients",),
        ("set",),
        ("scrub", "status"),
        ("explain", "--slower-than", "1us"),
        ("top", "--once", "--every", "100ms"),
    ):
        text = t.forebay(*words, *ask, env=EIGHTY).stdout
        assert all(len(line) <= 80 for line in text.splitlines()), text
        assert "\x1b" not in text, text
    # A program that reads it gets all of it, a terminal the first.
    piped = t.forebay("volume", "list", *ask, env=EIGHTY).stdout.splitlines()
    assert len(piped) == 34 and piped[1].startswith("17-x") and "…" in piped[1], piped
    terminal = Terminal(t, t.bin, "volume", "list", *ask)
    assert terminal.ended() == 0
    seen = terminal.seen
    assert "13 more volumes are not shown: forebay volume list --all" in seen, seen
    everything = t.forebay("volume", "list", "--all", *ask).stdout
    assert (
        len(everything.splitlines()) == 34
        and names[3] in everything
        and "red" in everything
    ), everything
    listed = {one["name"] for one in json.loads(t.forebay("volume", "list", "--json", *ask).stdout)}
    assert listed == {"vol0", *names}


@pool_only
def test_colours(t):
    """On a terminal, unless NO_COLOR or --color says otherwise."""
    server = t.up(size="1G", volume_size="64M")
    status = (t.bin, "status", "--socket", server.control)

    def is_coloured(*words, env=()):
        terminal = Terminal(t, *status, *words, env=env)
        assert terminal.ended() == 0
        assert "vol0" in terminal.seen
        return "\x1b[" in terminal.seen

    assert is_coloured() and is_coloured(env={"NO_COLOR": ""})
    assert not is_coloured(env={"NO_COLOR": "1"}) and not is_coloured(env={"TERM": "dumb"})
    assert not is_coloured("--color", "never") and is_coloured(
        "--color", "always", env={"NO_COLOR": "1"}
    )
    assert (
        "\x1b[" not in t.run(*status).stdout
        and "\x1b[" in t.run(*status, "--color", "always").stdout
    )
    t.refused(*status, "--color", "sometimes", saying=("auto", "never"))


@once
@limit(90)
def test_errors_say_what_to_type(t):
    """Whatever is refused, the last line names the command or the option that helps."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    served, ask = server.socket.parent, ("--socket", server.control)
    junk, empty = t.dir / "junk.toml", t.dir / "empty"
    junk.write_text("colour = 'red'\n")
    empty.touch()
    start, status = "start one with `forebay up`", "forebay status asks it"
    volumes, help_of = "see forebay volume list", "try '--help'"
    cache = "forebay cache attach PATH --size SIZE"
    devices, doctor = "forebay device list shows all devices", "forebay doctor --config FILE"
    example, named = "forebay config --example", "name the directory of forebay up"
    # The exit status, what the last line says, and the command.
    refused = [
        (1, start, "status", "--socket", t.dir / "none.sock"),
        (1, start, "status", "--socket", junk),
        (1, "forebay volume list --all", "volume", "create", "vol0", "--size", "1G", *ask),
        (2, help_of, "volume", "create", "a/b", "--size", "1G", *ask),
        (2, help_of, "volume", "create", "..", "--size", "1G", *ask),
        (2, help_of, "volume", "create", "x" * 80, "--size", "1G", *ask),
        (1, volumes, "volume", "resize", "none", "--size", "1G", *ask),
        (2, help_of, "volume", "resize", "vol0", "--size", "1001", *ask),
        (
            1, "forebay volume resize vol0 --size 1M --shrink",
            "volume", "resize", "vol0", "--size", "1M", *ask,
        ),
        (1, volumes, "volume", "delete", "none", "--yes", *ask),
        (2, "--yes", "volume", "delete", "vol0", *ask),
        (1, volumes, "volume", "limit", "none", *ask),
        (1, volumes, "volume", "read-only", "none", "on", *ask),
        (1, cache, "cache", "status", *ask),
        (1, cache, "cache", "flush", *ask),
        (1, cache, "cache", "detach", *ask),
        (1, volumes, "cache", "mode", "none", "writeback", *ask),
        (
            1, "see forebay cache attach --help",
            "cache", "attach", t.dir / "no" / "cache", "--size", "1G", *ask,
        ),
        (1, cache, "gc", *ask),
        (
            1, "truncate -s SIZE FILE; see forebay device add --help",
            "device", "add", t.dir / "none.img", *ask,
        ),
        (1, "see forebay device replace --help", "device", "replace", "none", empty, *ask),
        (
            1, "truncate -s SIZE FILE, then forebay device replace OLD FILE",
            "device", "replace", "pool0.img", t.dir / "none.img", *ask,
        ),
        (1, devices, "device", "remove", "none", *ask),
        (1, devices, "device", "offline", "none", *ask),
        (1, devices, "device", "online", "none", *ask),
        (1, devices, "device", "resize", "none", *ask),
        (1, "forebay device add PATH", "pool", "set", "copies=3", *ask),
        (2, "forebay pool set copies=2", "pool", "set", "copies=0", *ask),
        (1, devices, "scrub", "start", "--device", "none", *ask),
        (1, "forebay scrub status", "scrub", "pause", *ask),
        (1, "forebay scrub status", "scrub", "resume", *ask),
        (1, "forebay volume list --all", "explain", "--volume", "none", *ask),
        (2, "forebay set lists all", "set", "none", *ask),
        (2, "forebay set lists all", "set", "pool.commit_interval", "soon", *ask),
        (1, volumes, "attach", "none", *ask),
        (1, "forebay attached lists", "detach", "none"),
        (1, "forebay attached lists", "unmount", t.dir),
        (1, status, "up", served),
        (2, example, "serve", "--config", junk),
        (2, example, "serve", "--config", t.dir / "none.toml"),
        (2, example, "config", "--config", junk),
        (1, doctor, "serve", "--device", t.dir / "none.img"),
        (1, doctor, "serve", "--device", empty),
        (1, "with --size", "create", "--device", t.dir / "none.img"),
        (1, status, "create", "--device", server.devices[0]),
        (2, "see forebay create --help", "create", "--device", empty, "--copies", "2"),
        (1, "see forebay create --help", "create", "--device", empty, "--size", "1M"),
        (1, named, "check", t.dir / "none"),
        (1, "forebay scrub start heals it", "check", "--repair", served),
        (1, named, "check", "--device", empty),
        (1, named, "dump", "superblock", "--dir", t.dir / "none"),
        (2, named, "dump", "everything", "--dir", served),
        (2, named, "dump", "cache", "everything"),
        (2, "forebay top --once", "top", *ask),
        (2, help_of, "volume", "create"),
        (2, help_of, "nonsense"),
    ]
    if os.getuid() == 0:
        nowhere = t.dir / "no" / "dir"
        made = f"mkdir -p {nowhere}, then forebay mount"
        refused.append((1, made, "mount", "vol0", nowhere, *ask))
        refused.append((1, "name another place", "mount", "vol0", empty, *ask))
    kernel = os.getuid() == 0 and pathlib.Path("/sys/block/nbd0").exists()
    fuse = pathlib.Path("/dev/fuse").exists() and shutil.which("nbdfuse")
    if not kernel and fuse and shutil.which("fusermount3"):
        refused.append((1, "say --by fuse", "attach", "vol0", "--by", "kernel", *ask))
    silent = []
    for status, saying, *words in refused:
        done = t.forebay(*words, ok=range(1, 3), env={**os.environ, "XDG_RUNTIME_DIR": str(t.dir)})
        last = done.stderr.strip().splitlines()[-1]
        print(f"{done.returncode}: {last}")
        helps = saying in last and re.search(r"forebay \w+|--[a-z]", last)
        if done.returncode != status or not helps:
            silent.append((words, status, saying, done.returncode, done.stderr))
    assert not silent, "\n".join(map(str, silent))
