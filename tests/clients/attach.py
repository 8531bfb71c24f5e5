"""Volumes as disks of this machine: attached as a file by FUSE, mounted, listed, detached; what is
in the way is told."""

import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

from harness.case import Skip, cache_only, limit, once
from harness.data import MIB, noise
from harness.guest import Guest, initramfs, need_guest, package


def need_fuse(t):
    if os.getuid() != 0:
        raise Skip("only root can mount here")
    t.need("nbdfuse", "fusermount3", "mount", "blkid")
    if not pathlib.Path("/dev/fuse").exists():
        raise Skip("this machine forbids FUSE (no /dev/fuse)")
    # Each command looks after what others have left on this machine, in the tests beside, too.
    alone = open(pathlib.Path(tempfile.gettempdir()) / "forebay-attach-tests.lock", "a")
    t.later(alone.close)
    fcntl.flock(alone, fcntl.LOCK_EX)


def named(t, name):
    """A name of an attachment that no other test has; it is taken away in the end."""
    name = f"{name}-{os.getpid()}-{t.dir.name}"[:64]
    t.later(lambda: t.forebay("detach", name, ok=(0, 1)))
    return name


def attached(t, name):
    return next(
        (one for one in json.loads(t.forebay("attached", "--json").stdout) if one["name"] == name),
        None,
    )


@cache_only
def test_a_file(t):
    """What is written to the file is in the volume when it was synced; detaching waits for the
    rest; it is listed while it is there."""
    need_fuse(t)
    server = t.up(volume_size="64M", size="1G")
    name = named(t, "file")
    ask = ("--socket", server.control)
    path = pathlib.Path(
        t.forebay("attach", "vol0", "--name", name, "--by", "fuse", *ask).stdout.strip()
    )
    assert path.stat().st_size == 64 * MIB
    data = noise("attached", 3 * MIB)
    with open(path, "r+b") as file:
        file.seek(MIB)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        assert server.connect().pread(len(data), MIB) == data
        # Requests are whole sectors: there is no cache of the kernel between.
        file.write(b"behind" * 256)
    one = attached(t, name)
    assert (
        one["there"] and one["by"] == "fuse" and one["path"] == str(path) and not one["read_only"]
    ), one
    assert name in t.forebay("attached").stdout
    again = t.forebay("attach", "vol0", "--name", name, *ask, ok=(1,)).stderr
    assert "attached already" in again and str(path) in again, again
    t.forebay("detach", name)
    assert attached(t, name) is None and not path.exists()
    assert server.connect().pread(1536, 4 * MIB) == b"behind" * 256
    assert "not attached" in t.forebay("detach", name, ok=(1,)).stderr
    assert (
        "forebay volume list" in t.forebay("attach", "none", "--name", name, *ask, ok=(1,)).stderr
    )
    # Nothing can be changed through one that is read-only.
    path = pathlib.Path(
        t.forebay(
            "attach", "vol0", "--name", name, "--by", "fuse", "--read-only", *ask
        ).stdout.strip()
    )
    try:
        with open(path, "r+b") as file:
            file.write(bytes(512))
            file.flush()
            os.fsync(file.fileno())
        raise AssertionError("a read-only attachment was changed")
    except OSError as error:
        print("refused:", error)
    t.forebay("detach", name)
    server.stop()


@once
def test_what_has_died(t):
    """A process or a server that died leaves a record that says so, and detaching cleans it up."""
    need_fuse(t)
    server = t.up(volume_size="16M", size="1G")
    name = named(t, "died")
    ask = ("--socket", server.control)
    for victim in ("fuse", "server"):
        path = t.forebay("attach", "vol0", "--name", name, "--by", "fuse", *ask).stdout.strip()
        if victim == "fuse":
            record = json.loads(pathlib.Path(path).parent.with_suffix(".json").read_text())
            os.kill(record["process"][0], signal.SIGKILL)
        else:
            server.kill()
            try:
                pathlib.Path(path).read_bytes()
            except OSError as error:
                print("without a server:", error)
        deadline = time.monotonic() + 20
        while victim == "fuse" and attached(t, name)["there"]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        t.forebay("detach", name)
        assert attached(t, name) is None
    assert "no server answers" in t.forebay("attach", "vol0", "--name", name, *ask, ok=(1,)).stderr
    assert attached(t, name) is None


@once
def test_killed_while_it_attaches(t):
    """What a command that is killed has begun is no attachment, and is in the way of none; while it
    runs, another one waits for it to end."""
    need_fuse(t)
    server = t.up(volume_size="16M", size="1G")
    name = named(t, "killed")
    words = ("attach", "vol0", "--name", name, "--by", "fuse", "--socket", server.control)
    # An nbdfuse that mounts, and never says so.
    real, tools = shutil.which("nbdfuse"), t.dir / "tools"
    tools.mkdir()
    (tools / "nbdfuse").write_text(f'#!/bin/sh\nshift 2\nexec {real} "$@"\n')
    (tools / "nbdfuse").chmod(0o755)
    slow = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    record = pathlib.Path(f"/run/forebay-attached/{name}.json")
    mount = record.with_suffix(".d")

    def kill_one():
        one = subprocess.Popen([t.bin, *map(str, words)], env=slow, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 20
        while not os.path.ismount(mount):
            assert time.monotonic() < deadline and one.poll() is None
            time.sleep(0.05)
        for command in (words, ("detach", name)):
            said = t.forebay(*command, ok=(1,)).stderr
            assert f"another command attaches {name} now" in said, said
        assert attached(t, name) is None and os.path.ismount(mount)
        one.kill()
        one.wait()
        assert record.stat().st_size == 0

    kill_one()
    assert attached(t, name) is None
    assert not record.exists() and not mount.exists()
    kill_one()
    t.forebay("detach", name)
    assert not record.exists() and not mount.exists()
    kill_one()
    path = pathlib.Path(t.forebay(*words).stdout.strip())
    assert attached(t, name)["there"] and path.read_bytes()[:512] == bytes(512)
    t.forebay("detach", name)
    assert not list(record.parent.glob(f"{name}.*"))
    server.stop()


@once
def test_again_after_a_restart(t):
    """What a server that has ended leaves is no attachment: it is told, and the same command
    attaches the volume again."""
    need_fuse(t)
    server = t.up(volume_size="16M", size="1G")
    name = named(t, "again")
    words = ("attach", "vol0", "--name", name, "--by", "fuse", "--socket", server.control)
    path = t.forebay(*words).stdout.strip()
    for again in (server.restart, lambda: (server.kill(), server.start())):
        again()
        assert not attached(t, name)["there"] and "gone" in t.forebay("attached").stdout
        assert t.forebay(*words).stdout.strip() == path
        assert attached(t, name)["there"] and pathlib.Path(path).read_bytes()[:512] == bytes(512)
    # One that somebody has open is not taken away below them, nor is one that works.
    assert "attached already" in t.forebay(*words, ok=(1,)).stderr
    with open(path, "rb"):
        server.restart()
        assert "in use" in t.forebay(*words, ok=(1,)).stderr
    t.forebay(*words)
    t.forebay("detach", name)


@cache_only
@limit(90)
def test_a_file_system(t):
    """Mounted with a new file system, filled, unmounted, mounted again: all is there; what is on a
    volume is not made over."""
    need_fuse(t)
    if not pathlib.Path("/dev/loop-control").exists():
        raise Skip("this machine forbids loop devices (no /dev/loop-control)")
    server = t.up(volume_size="256M", size="2G")
    name = named(t, "mounted")
    mnt = t.dir / "mnt dir"
    mnt.mkdir()
    ask = ("--name", name, "--by", "fuse", "--socket", server.control)
    t.later(lambda: t.forebay("unmount", mnt, ok=(0, 1)))
    said = t.forebay("mount", "vol0", mnt, *ask, ok=(1,)).stderr
    assert "--make ext4" in said and attached(t, name) is None, said
    # Data that is no file system is kept, also where the cache alone has it.
    client = server.connect()
    client.pwrite(noise("raw", MIB), 100 * MIB)
    client.flush()
    said = t.forebay("mount", "vol0", mnt, "--make", "ext4", *ask, ok=(1,)).stderr
    assert "holds data" in said and "--make ext4 --force" in said, said
    said = t.forebay("mount", "vol0", mnt, *ask, ok=(1,)).stderr
    assert "other data" in said and "--make" not in said, said
    assert attached(t, name) is None and client.pread(MIB, 100 * MIB) == noise("raw", MIB)
    t.forebay("mount", "vol0", mnt, "--make", "ext4", "--force", *ask)
    (mnt / "file").write_bytes(noise("mounted", 5 * MIB))
    one = attached(t, name)
    assert one["mounted"] == str(mnt) and one["there"], one
    said = t.forebay("detach", name, ok=(1,)).stderr
    assert "forebay unmount" in said, said
    assert "already" in t.forebay("mount", "vol0", mnt, *ask, ok=(1,)).stderr
    with open(mnt / "held", "wb"):
        assert "busy" in t.forebay("unmount", mnt, ok=(1,)).stderr
        assert (mnt / "file").exists()
    t.forebay("unmount", mnt)
    assert attached(t, name) is None and not (mnt / "file").exists()
    # Of one whose server has ended, what to type is said, and works.
    t.forebay("mount", "vol0", mnt, "--read-only", *ask)
    server.kill()
    deadline = time.monotonic() + 20
    while attached(t, name)["there"]:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    said = " ".join(t.forebay("attached", env={**os.environ, "COLUMNS": "250"}).stdout.split())
    assert f"mounted at {mnt}, gone: forebay unmount" in said, said
    t.forebay("unmount", mnt)
    assert attached(t, name) is None
    server.start()
    said = t.forebay("mount", "vol0", mnt, "--make", "ext4", *ask, ok=(1,)).stderr
    assert "holds ext4 already" in said, said
    t.forebay("mount", "vol0", mnt, "--read-only", *ask)
    assert (mnt / "file").read_bytes() == noise("mounted", 5 * MIB)
    try:
        (mnt / "new").write_text("x")
        raise AssertionError("a read-only mount was changed")
    except OSError as error:
        print("refused:", error)
    t.forebay("unmount", mnt)
    assert "nothing at" in t.forebay("unmount", mnt, ok=(1,)).stderr
    server.stop()


@once
def test_without_the_kernel(t):
    """Where the kernel has no NBD that is told, with what to do, and nothing is left."""
    if os.getuid() == 0 and pathlib.Path("/sys/block/nbd0").exists():
        raise Skip("this kernel has NBD")
    server = t.up(volume_size="16M", size="1G")
    name = named(t, "kernel")
    said = t.forebay(
        "attach", "vol0", "--name", name, "--by", "kernel", "--socket", server.control, ok=(1,)
    ).stderr
    assert "modprobe nbd" in said or "only root" in said, said
    assert attached(t, name) is None
    need_fuse(t)
    assert said.strip().endswith("say --by fuse for a file instead"), said
    # By itself it is a file, and says why it is no block device.
    for more, told in (((), 1), (("--by", "fuse"), 0)):
        done = t.forebay("attach", "vol0", "--name", name, *more, "--socket", server.control)
        assert pathlib.Path(done.stdout.strip()).is_file(), done.stdout
        lines = done.stderr.splitlines()
        assert len(lines) == told, done.stderr
        assert all("no block device" in line and "modprobe nbd" in line for line in lines), lines
        t.forebay("detach", name)


# The guest serves the volume to itself. `say` tells a word, `must` what failed.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/sbin:/bin FOREBAY_SOCKET=/srv/d/control.sock
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /srv /run /tmp /mnt/a
mount -t tmpfs tmpfs /srv
ip link set lo up
for m in /modules/*.ko; do insmod "$m" 2>/dev/null; done
end() { echo "@end $1"; sync; poweroff -f; }
must() { "$@" >/tmp.out 2>&1 || { cat /tmp.out; end "$(echo $* | tr ' ' _)"; }; }
serve() {
    forebay up /srv/d --size 256M --volume-size 128M --cache-size 0 --http-listen none --io posix \
>/srv/log 2>&1 &
    server=$!
    for i in $(seq 100); do forebay status >/dev/null 2>&1 && return; sleep 0.2; done
    cat /srv/log
    end no-server
}
[ -d /sys/block/nbd0 ] || end no-nbd
serve
dev=$(forebay attach vol0 2>/tmp.out) || { cat /tmp.out; end attach-failed; }
echo "@attached $dev $(readlink /dev/forebay/vol0) $(cat /sys/block/nbd0/size)"
must /sbin/mke2fs -q -t ext4 -F $dev
must mount -t ext4 $dev /mnt/a
seq 20000 > /mnt/a/file
must umount /mnt/a
echo "@second $(forebay attach vol0 2>&1 | grep -c 'attached already')"
echo "@listed $(forebay attached --json | grep -c '"by": "kernel"')"
must forebay detach vol0
[ -e /sys/block/nbd0/pid ] && end still-there
[ -e /dev/forebay/vol0 ] && end link-is-left
kill -9 $server
wait $server 2>/dev/null
serve
echo "@made $(forebay mount vol0 /mnt/a --make ext4 2>&1 | grep -c 'holds ext4 already')"
must forebay mount vol0 /mnt/a
echo "@sum $(md5sum </mnt/a/file | cut -c1-32)"
seq 30000 > /mnt/a/more
echo "@busy $(forebay detach vol0 2>&1 | grep -c 'forebay unmount')"
must forebay unmount /mnt/a
must forebay attach vol0 --read-only
dd if=/dev/zero of=/dev/nbd0 bs=4096 count=1 conv=fsync 2>/dev/null && end wrote-to-a-read-only-one
must /sbin/e2fsck -f -n /dev/nbd0
must forebay detach vol0
kill $server
wait $server
echo "@stopped $?"
end fine
"""


@once
@limit(240)
def test_by_the_kernel(t):
    """In a guest with the kernel's NBD a volume is a block device: attached, made into a file
    system, detached, mounted again after a kill."""
    image, root = need_guest(t)
    client = package(t, "nbd-client")
    programs = [t.bin, *client.rglob("sbin/nbd-client"), "/sbin/blkid"]
    libraries = t.run("ldd", programs[1]).stdout
    if "not found" in libraries:
        libnl = package(t, "libnl-genl-3-200"), package(t, "libnl-3-200")
        os.environ["LD_LIBRARY_PATH"] = ":".join(
            str(path.parent) for one in libnl for path in one.rglob("libnl*.so.*")
        )
        t.later(lambda: os.environ.pop("LD_LIBRARY_PATH", None))
    server = t.up(volume_size="16M", size="1G")
    ramdisk = initramfs(t, root, INIT, programs)
    guest = Guest(t, image, ramdisk, server.uri(), "attach", memory_mib=1024)
    said = {}
    for words in guest.lines(200):
        said[words[0]] = words[1:]
    print("\n".join(guest.text))
    assert said.get("end") == ["fine"], (said, guest.text[-30:])
    assert said["attached"] == ["/dev/nbd0", "/dev/nbd0", str(128 * MIB // 512)], said
    for word in ("second", "listed", "made", "busy"):
        assert said[word] == ["1"], said
    want = hashlib.md5("".join(f"{n}\n" for n in range(1, 20001)).encode()).hexdigest()
    assert said["sum"] == [want] and said["stopped"] == ["0"], said
