"""One disk by several names, and names that have moved: nothing is written by two servers, nothing
that is there is given up or called missing."""

import errno
import json
import os
import pathlib
import re
import time

from harness.case import Skip, limit, once, pool_only
from harness.data import GIB, MIB, noise
from harness.server import Server, expect_error

SIZE = 512 * MIB


def served(t, name, *arguments, start=True):
    """A server with sockets of its own."""
    nbd_socket, control = t.dir / f"{name}.nbd", t.dir / f"{name}.control"
    sockets = ("--nbd-socket", nbd_socket, "--socket", control)
    one = Server(t, [t.bin, "serve", *arguments, *sockets], nbd_socket, control, [])
    return one.start() if start else one


def says_all(text, words):
    for word in words:
        assert word in text, (word, text)
    return text


def refused(t, *arguments, saying):
    """A server that does not start, and says all of this."""
    one = served(t, "refused", *arguments, start=False)
    return says_all(t.refused(*one.command), saying)


class Loop:
    """A loop device over a file."""

    def __init__(self, t, path):
        t.need("losetup")
        self.t, self.root = t, t.as_root()
        if not pathlib.Path("/dev/loop-control").exists():
            raise Skip("this machine forbids loop devices")
        made = t.run(*self.root, "losetup", "--find", "--show", path)
        self.node = made.stdout.strip()
        t.later(self.detach)

    def detach(self):
        if self.node:
            self.t.run(*self.root, "losetup", "--detach", self.node)
            self.node = None


@once
@limit(60)
def test_a_file_and_a_loop_device_over_it(t):
    """Whichever is served first, the other one is refused, and named."""
    (path,) = t.devices(SIZE)
    t.forebay("create", "--device", path)
    loop = Loop(t, path)
    if os.geteuid() != 0:
        raise Skip("only root may open a loop device")
    t.refused(
        t.bin, "create", "--device", path, "--device", loop.node, "--force", saying=("same device",)
    )
    refused(t, "--device", path, saying=(loop.node, "losetup --detach"))
    first = served(t, "first", "--device", loop.node)
    first.volume("create", "vol0", "--size", "64M")
    refused(t, "--device", path, saying=("in use",))
    t.refused(t.bin, "check", "--device", path, saying=("in use",))
    first.stop()
    loop.detach()
    first = served(t, "first", "--device", path)
    late = Loop(t, path)
    said = refused(t, "--device", late.node, saying=("another name", path.name))
    assert "forget" not in said
    handle = first.connect()
    handle.pwrite(noise("x", MIB), 0)
    handle.flush()
    first.stop()
    late.detach()
    t.forebay("check", "--data", "--device", path)


@once
@limit(60)
def test_a_disk_that_is_a_part_of_something(t):
    """The message says of what."""
    t.need("dmsetup")
    (path,) = t.devices(SIZE)
    loop = Loop(t, path)
    name = f"forebay-test-{os.getpid()}"
    table = f"0 {SIZE // 512} linear {loop.node} 0"
    made = t.run(*loop.root, "dmsetup", "create", name, "--table", table, ok=(0, 1))
    if made.returncode:
        raise Skip("this kernel has no device mapper")
    t.later(lambda: t.run(*loop.root, "dmsetup", "remove", name))
    says_all(t.refused(t.bin, "create", "--device", loop.node), ("it is a part of", name))


# After an open looks are taken for seven seconds, and each counts for one.
PAST_THE_LOOKS_S = 8.5


class Twin:
    """Files that a second server has by names that no lock joins, as another machine has a LUN:
    loop devices, in a mount namespace in which the files below them are not to be seen."""

    def __init__(self, t, *names):
        t.need("losetup", "unshare")
        if os.geteuid() != 0:
            raise Skip("only root has mount namespaces")
        self.t, self.hidden = t, t.dir / "hidden"
        self.hidden.mkdir()
        self.files = [self.hidden / name for name in names]
        for path in self.files:
            with open(path, "wb") as file:
                file.truncate(SIZE)

    def serve(self, options):
        """The second server; each option has the loop device over the next file."""
        words = []
        for option, path in zip(options, self.files, strict=True):
            words += [option, Loop(self.t, path).node]
        one = served(self.t, "second", *words, start=False)
        hide = f"mount -t tmpfs none {self.hidden} && exec \"$@\""
        one.command = ["unshare", "--mount", "sh", "-c", hide, "sh", *one.command]
        return one.start()


def meets_the_second(first, handle):
    """The first server has stood still: it writes nothing more, and says why."""
    expect_error(
        errno.EIO, lambda: (handle.pwrite(noise("late", MIB), 4 * MIB), handle.flush())
    )
    (problem,) = [p for p in first.status()["health"] if p["page"] == "two-writers"]
    assert "another process writes to this" in problem["what"], problem
    assert "another process writes to this" in first.log_text()


@once
@limit(120)
def test_two_servers_on_one_disk(t):
    """By names that no lock joins: the one that finds the other stops, and says so. The one that
    goes on has all that it flushed."""
    twin = Twin(t, "disk")
    (disk,) = twin.files
    t.forebay("create", "--device", disk)
    first = served(t, "first", "--device", disk)
    first.volume("create", "vol0", "--size", "64M")
    one = first.connect()
    one.pwrite(noise("first", MIB), 0)
    one.flush()
    time.sleep(PAST_THE_LOOKS_S)
    second = twin.serve(["--device"])
    assert "cannot be locked" in second.log_text()
    two = second.connect()
    two.pwrite(noise("second", MIB), 0)
    two.flush()
    meets_the_second(first, one)
    two.pwrite(noise("more", MIB), 8 * MIB)
    two.flush()
    assert two.pread(MIB, 0) == noise("second", MIB)
    assert second.status()["health"] == []
    first.kill()
    second.stop()
    t.undo_all()
    t.forebay("check", "--data", "--device", disk)


@once
@limit(120)
def test_two_servers_on_one_cache(t):
    """The same with a pool and a cache that two servers have."""
    twin = Twin(t, "pool", "fast")
    pool, fast = twin.files
    t.forebay("create", "--device", pool, "--cache", fast)
    first = served(t, "first", "--device", pool, "--cache", fast)
    first.volume("create", "vol0", "--size", "64M")
    one = first.connect()
    one.pwrite(noise("first", MIB), 0)
    one.flush()
    time.sleep(PAST_THE_LOOKS_S)
    second = twin.serve(["--device", "--cache"])
    two = second.connect()
    two.pwrite(noise("second", MIB), 0)
    two.flush()
    meets_the_second(first, one)
    first.kill()
    two.pwrite(noise("more", MIB), 8 * MIB)
    two.flush()
    assert two.pread(MIB, 0) == noise("second", MIB)
    second.kill()
    t.undo_all()
    again = served(t, "second", "--device", pool, "--cache", fast)
    assert again.connect().pread(MIB, 8 * MIB) == noise("more", MIB)
    again.stop()


@once
@limit(120)
def test_names_moved_by_one(t):
    """A cache named as a device and a device named as the cache: each is told what it is, nothing
    is changed, and the cache cannot be given up."""
    a, b = t.devices(SIZE, SIZE)
    c = t.dir / "c"
    t.forebay("create", "--device", a, "--device", b, "--cache", c, "--cache-size", "64M")
    server = served(t, "first", "--device", a, "--device", b, "--cache", c)
    server.volume("create", "vol0", "--size", "64M")
    handle = server.connect()
    handle.pwrite(noise("x", MIB), 0)
    handle.flush()
    server.kill()
    before = [path.read_bytes() for path in (a, b, c)]
    moved = ("--device", a, "--device", c, "--cache", b)
    right = f"--device {a} --device {b} --cache {c}"
    for more in ((), ("--forget-cache",)):
        text = refused(
            t,
            *moved,
            *more,
            saying=(
                f"{c} is the cache of this pool",
                f"{b} is a device of this pool",
                "Nothing was changed",
                right,
            ),
        )
        assert "missing" not in text and "from the pool's older image" not in text, text
    refused(t, "--device", a, "--device", b, "--device", c, saying=(right,))
    refused(t, "--device", a, "--device", b, "--device", c, "--forget-cache", saying=(right,))
    refused(t, "--device", a, "--cache", b, saying=(f"{b} is a device of this pool",))
    doctor = t.forebay("doctor", *moved, ok=(0, 1, 2, 3, 4, 5, 6)).stdout
    assert "is the cache of this pool" in doctor, doctor
    assert [path.read_bytes() for path in (a, b, c)] == before
    server = served(t, "first", "--device", a, "--device", b, "--cache", c)
    assert server.connect().pread(MIB, 0) == noise("x", MIB)
    server.stop()


@pool_only
@limit(60)
def test_a_device_is_resized_and_not_its_path(t):
    """A device's file was renamed, and another one is at its path: neither is measured for the
    other, and the stranger is not lengthened."""
    a, b = t.devices(SIZE, SIZE)
    t.forebay("create", "--device", a, "--device", b)
    server = t.serve([a, b])
    resize = lambda *words: ("device", "resize", *words, "--socket", server.control)
    a.rename(t.dir / "elsewhere")
    # Nothing is there: the file that is open is meant.
    text = t.forebay(*resize(a, "1G")).stdout
    assert "1 GiB" in text, text
    assert (t.dir / "elsewhere").stat().st_size == GIB and not a.exists()
    a.write_bytes(b"stranger")
    for size in ((), ("2G",)):
        t.refused(t.bin, *resize(a, *size), saying=("is not what the server has open",))
    with open(b, "ab"):
        b.rename(t.dir / "moved")
    with open(b, "wb") as file:
        file.truncate(8 * GIB)
    t.refused(t.bin, *resize(b), saying=("is not what the server has open",))
    assert a.read_bytes() == b"stranger" and b.stat().st_size == 8 * GIB
    server.stop()
    # What the pool believes that it has is there.
    moved = [t.dir / "elsewhere", t.dir / "moved"]
    t.forebay("check", "--device", *moved)
    server = served(t, "again", "--device", moved[0], "--device", moved[1])
    assert re.search("online", t.forebay("status", "--socket", server.control).stdout)
    server.stop()


def words_of(devices):
    return [word for device in devices for word in ("--device", device)]


@once
@limit(60)
def test_a_write_protected_disk(t):
    """It is left out with what it is, in the log, in status and by doctor; not "plug it in"."""
    files = t.devices(SIZE, SIZE)
    t.forebay("create", *words_of(files))
    if os.geteuid() != 0:
        raise Skip("only root may open a loop device")
    loop = Loop(t, files[1])
    t.run("blockdev", "--setro", loop.node)
    server = served(t, "protected", "--device", files[0], "--device", loop.node)
    server.says(f"{loop.node} is write-protected", "blockdev --setrw", "going on without")
    (problem,) = [one for one in server.status()["health"] if one["page"] == "device-missing"]
    assert "write-protected" in problem["what"] and "mend that" in problem["todo"], problem
    server.stop()
    doctor = t.forebay("doctor", "--device", loop.node, ok=(3,)).stdout
    assert "write-protected" in doctor, doctor
    t.refused(
        *served(t, "alone", "--device", loop.node, start=False).command,
        saying=("write-protected", "--setrw"),
    )
    t.run("blockdev", "--setrw", loop.node)
    server = served(t, "again", "--device", files[0], "--device", loop.node)
    assert "write-protected" not in server.log_text()


@once
@limit(60)
def test_a_disk_that_was_cut_short(t):
    """It is there: what it lacks is said, and what gives it its size back."""
    files = t.devices(SIZE, SIZE)
    t.forebay("create", *words_of(files))
    os.truncate(files[1], SIZE // 2)
    server = served(t, "short", *words_of(files))
    (problem,) = [one for one in server.status()["health"] if one["page"] == "device-missing"]
    assert "truncated" in problem["what"] and str(files[1]) in problem["what"], problem
    assert "mend that" in problem["todo"] and "plug it in" not in problem["todo"], problem
    os.truncate(files[1], SIZE)
    t.forebay("device", "online", files[1], "--wait", "--socket", server.control)
    assert "device-missing" not in [one["page"] for one in server.status()["health"]]


@once
@limit(60)
def test_a_socket_of_another_namespace(t):
    """A server that lives is not called gone where the kernel's list of sockets is another."""
    t.need("unshare")
    if os.geteuid() != 0:
        raise Skip("only root may make a namespace")
    server = t.up(size="1G", volume_size="16M")
    home = server.socket.parent
    told = t.run("unshare", "--net", t.bin, "doctor", home, "--json", ok=(0, 3)).stdout
    sockets = [one["found"] for one in json.loads(told) if one["check"] == "socket"]
    assert sockets and not [text for text in sockets if "left behind" in text], sockets


@once
@limit(60)
def test_a_directory_that_is_too_deep_for_sockets(t):
    """What clients could not connect to is not served, also where what was said is short."""
    deep = t.dir / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    told = t.run(t.bin, "up", "data", cwd=deep, ok=(2,)).stderr
    says_all(told, ("107 bytes", "--nbd-socket", "nearer to the root"))
    assert not (deep / "data").exists()
