"""What was answered outlives the process: `kill -9`, a restart, and a client that goes on finds all
of it, flushed or not."""

import pathlib
import random
import signal
import socket
import subprocess
import time

import nbd
from clients.filesystems import Disk
from harness.case import cache_only, limit, once
from harness.data import MIB, sample_tree

BLOCK = 4096


class Answered:
    """A client that waits for each answer, and what it knows of the volume then."""

    def __init__(self, server, size, seed, export="vol0"):
        self.server = server
        self.size = size
        self.export = export
        self.rng = random.Random(seed)
        self.bytes = bytearray(size)

    def work(self, seconds):
        """Writes of all kinds, without a flush but for a few; the last answer has come when it
        returns."""
        handle = self.server.connect(self.export)
        until = time.monotonic() + seconds
        count = 0
        while time.monotonic() < until:
            self.one(handle)
            count += 1
        return count

    def one(self, handle):
        rng = self.rng
        unit = rng.choice((512, BLOCK, BLOCK, 64 * 1024))
        at = rng.randrange(self.size // unit) * unit
        length = min(unit * rng.randrange(1, 5), self.size - at)
        match rng.randrange(20):
            case 0:
                handle.zero(length, at)
                self.bytes[at : at + length] = bytes(length)
            case 1:
                at -= at % BLOCK
                length = max(length - length % BLOCK, BLOCK)
                handle.trim(length, at)
                self.bytes[at : at + length] = bytes(length)
            case 2 if rng.randrange(10) == 0:
                handle.flush()
            case _:
                data = rng.randbytes(16) * (length // 16)
                handle.pwrite(data, at)
                self.bytes[at : at + length] = data

    def verify(self):
        handle = self.server.connect(self.export)
        for at in range(0, self.size, MIB):
            found = handle.pread(MIB, at)
            expected = self.bytes[at : at + MIB]
            if found == expected:
                continue
            wrong = [i for i in range(0, MIB, 512) if found[i : i + 512] != expected[i : i + 512]]
            raise AssertionError(f"{len(wrong)} sectors are wrong, the first at {at + wrong[0]}")


# By a user or the OOM killer; by a panic or a watchdog.
DEATHS = (signal.SIGKILL, signal.SIGABRT)


def lives(server, client, rounds):
    for number in range(rounds):
        # A write 0.2 s old, and some that are older than a turn of the journal.
        count = client.work((0.2, 1.3, 0.05, 2.5)[number % 4])
        server.kill(DEATHS[number % len(DEATHS)])
        server.start()
        client.verify()
        print(f"{count} answered operations are there")


@limit(180)
def test_all_that_was_answered_is_there(t):
    server = t.up(volume_size="16M", size="1G")
    lives(server, Answered(server, 16 * MIB, time.time_ns()), 6)
    server.stop()
    server.check()


@limit(180)
def test_one_copy_and_none_in_memory(t):
    """A pool of one copy; the records stand in a directory that is on a disk."""
    devices = t.devices(1 << 30)
    t.forebay("create", "--device", devices[0], "--copies", "1")
    server = t.serve(devices, "--host-log", t.dir / "answered")
    server.volume("create", "vol0", "--size", "8M")
    lives(server, Answered(server, 8 * MIB, 7), 4)
    server.stop()
    assert not list((t.dir / "answered").iterdir()), "a clean stop leaves nothing"
    server.check()


@limit(180)
@cache_only
def test_every_mode(t):
    server = t.up("--cache-size", "64M", volume_size="8M", size="1G")
    modes = ("writeback", "writethrough", "writearound", "none")
    clients = []
    for number, mode in enumerate(modes):
        name = f"of-{mode}"
        server.volume("create", name, "--size", "8M")
        server.cache("mode", name, mode)
        clients.append(Answered(server, 8 * MIB, number, export=name))
    for _ in range(3):
        for client in clients:
            client.work(0.4)
        server.kill()
        server.start()
        for client in clients:
            client.verify()
    server.stop()
    server.check()


@limit(60)
@once
def test_a_copy_of_the_devices_takes_nothing(t):
    """The server is killed; a copy of its devices is started first, then the original."""
    server = t.up("--cache-size", "0", volume_size="8M", size="1G")
    client = Answered(server, 8 * MIB, 5)
    client.work(0.3)
    server.kill()
    copy = t.dir / "copy"
    t.run("cp", "-a", "--sparse=always", t.dir / "data", copy)
    other = t.up("--cache-size", "0", volume_size="8M", size="1G", directory="copy")
    other.stop()
    server.start()
    client.verify()
    server.stop()


@limit(60)
@once
def test_a_copy_that_is_served_beside_takes_nothing(t):
    """A copy of a pool that was stopped, and both are started: they count on with the same
    numbers, in the same directories."""
    server = t.up("--cache-size", "64M", volume_size="8M", size="1G")
    server.stop()
    copy = t.dir / "copy"
    t.run("cp", "-a", "--sparse=always", t.dir / "data", copy)
    server.start()
    client = Answered(server, 8 * MIB, 5)
    client.work(0.3)
    other = t.up("--cache-size", "64M", volume_size="8M", size="1G", directory="copy")
    of_copy = Answered(other, 8 * MIB, 6)
    of_copy.work(0.3)
    client.work(0.3)
    for one in (server, other):
        one.kill()
    for one, its in ((other, of_copy), (server, client)):
        one.start()
        its.verify()
        one.stop()
        one.check()


@limit(60)
@once
def test_a_log_is_found_where_it_was(t):
    """Another directory is chosen after the process has died, or none."""
    server = t.up("--cache-size", "64M", volume_size="8M", size="1G")
    client = Answered(server, 8 * MIB, 5)
    for choice in ("off", t.dir / "elsewhere"):
        client.work(0.3)
        server.kill()
        server.start("--host-log", str(choice))
        client.verify()
        server.stop()
        server.start()
    server.stop()


@limit(120)
@once
def test_a_log_that_ran_out_of_memory_begins_again(t):
    """Its directory has room for little more than one log; others are full of it, too."""
    root = t.as_root()
    small = t.dir / "small"
    small.mkdir()
    t.run(*root, "mount", "-t", "tmpfs", "-o", "size=512k,mode=777", "none", small)
    t.later(lambda: t.run(*root, "umount", "-l", small))
    devices = t.devices(1 << 30)
    t.forebay("create", "--device", devices[0], "--copies", "1")
    server = t.serve(devices, "--host-log", small)
    server.volume("create", "vol0", "--size", "8M")
    client = Answered(server, 8 * MIB, 7)

    def is_at_risk():
        status = t.forebay("status", "--socket", server.control).stdout
        return "answered and not flushed is lost if the server's process dies" in status

    handle = server.connect("vol0")
    deadline = time.monotonic() + 40
    while not is_at_risk():
        assert time.monotonic() < deadline, "the log has room"
        for _ in range(3000):
            handle.pwrite(client.bytes[:BLOCK], 0)
    handle.flush()
    assert not is_at_risk(), "all is durable"
    client.work(0.1)
    server.kill()
    server.start()
    client.verify()
    server.stop()


@limit(60)
@once
def test_no_memory_is_told(t):
    server = t.up("--cache-size", "0", "--host-log", t.dir / "no" / "where", volume_size="8M")
    status = t.forebay("status", "--socket", server.control).stdout
    assert "answered and not flushed is lost if the server's process dies" in status, status
    client = Answered(server, 8 * MIB, 5)
    client.work(0.3)
    client.verify()
    server.stop()


class Reconnecting:
    """qemu's NBD client, which reconnects, behind a server of its own. What connects to that does
    not notice that forebay's process has died."""

    def __init__(self, t, server):
        t.need("qemu-nbd")
        self.socket = t.dir / "proxy.sock"
        image = (
            f"driver=nbd,export=vol0,server.type=unix,server.path={server.socket},"
            "reconnect-delay=60,discard=unmap"
        )
        command = ["qemu-nbd", "--image-opts", image, "--socket", str(self.socket)]
        command += ["--persistent", "--shared", "4", "--cache", "none", "--discard", "unmap"]
        print("$", *command, "&", flush=True)
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        t.later(self.end)
        deadline = time.monotonic() + 20
        while not self.answers():
            assert time.monotonic() < deadline, "qemu-nbd does not answer"
            time.sleep(0.05)

    def answers(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(self.socket))
                return True
            except OSError:
                return False

    def uri(self):
        return f"nbd+unix:///?socket={self.socket}"

    def end(self):
        if self.process.poll() is None:
            # It would wait for a server that is gone.
            self.process.kill()
            self.process.wait(20)


@limit(60)
def test_nbdkit_that_connects_again(t):
    """A flush that is asked for by a client that has connected again says that the write before the
    process died is durable: it is there."""
    t.need("nbdkit")
    server = t.up(volume_size="8M", size="1G")
    path = t.dir / "nbdkit.sock"
    command = ["nbdkit", "--foreground", "--exit-with-parent", "--unix", path, "--filter=retry"]
    command += ["nbd", f"socket={server.socket}", "export=vol0"]
    command += ["retries=20", "retry-delay=1", "retry-exponential=no"]
    print("$", *command, "&", flush=True)
    process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL)
    t.later(process.kill)
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, "nbdkit does not answer"
        time.sleep(0.05)
    handle = nbd.NBD()
    handle.connect_uri(f"nbd+unix:///?socket={path}")
    for number, seconds in enumerate((0.2, 2)):
        at = number * MIB
        handle.pwrite(b"1" * BLOCK, at)
        handle.flush()
        handle.pwrite(b"2" * BLOCK, at)
        time.sleep(seconds)
        server.kill()
        server.start()
        handle.flush()
        assert handle.pread(BLOCK, at) == b"2" * BLOCK
    handle.shutdown()
    process.kill()
    process.wait()
    server.stop()
    server.check()


@limit(200)
def test_ext4_over_a_client_that_reconnects(t):
    """Files are written, some are synced, the process dies under them, and goes on: all of them are
    right when the file system is synced and checked."""
    t.need("mkfs.ext4", "e2fsck")
    server = t.up(volume_size="512M", size="2G")
    proxy = Reconnecting(t, server)
    disk = Disk(t, proxy)
    tree = t.dir / "tree"
    sample_tree(tree, 24 * MIB)
    loop = disk.attach()
    t.run(*disk.root, "mkfs.ext4", "-q", "-F", loop)
    mounted = disk.mount()
    for number in range(4):
        t.run(*disk.root, "cp", "-a", tree, pathlib.Path(mounted) / f"copy{number}")
        if number % 2:
            t.run(*disk.root, "sync", "-f", mounted)
        time.sleep(0.3)
        server.kill()
        server.start()
    t.run(*disk.root, "sync", "-f", mounted)
    disk.unmount()
    t.run(*disk.root, "e2fsck", "-fn", loop)
    disk.mount("-o", "ro")
    for number in range(4):
        copy = pathlib.Path(mounted) / f"copy{number}"
        t.run(*disk.root, "diff", "-r", "--no-dereference", tree, copy)
    disk.unmount()
    disk.detach()
    proxy.end()
    server.stop()
    server.check()
