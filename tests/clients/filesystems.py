"""ext4 and XFS on a loop device over nbdfuse: filled from /usr, unmounted, checked, mounted again,
compared."""

import os
import pathlib
import shutil
import subprocess
import time

from harness.case import Skip, limit
from harness.data import MIB, sample_tree


class Disk:
    """The volume as a block device of this machine: nbdfuse shows it as a file, a loop device makes
    a disk of that."""

    def __init__(self, t, server):
        self.t = t
        self.server = server
        self.root = t.as_root()
        t.need("nbdfuse", "losetup", "mount")
        if not pathlib.Path("/dev/fuse").exists():
            raise Skip("this machine forbids FUSE (no /dev/fuse)")
        if not pathlib.Path("/dev/loop-control").exists():
            raise Skip("this machine forbids loop devices (no /dev/loop-control)")
        self.fuse = t.dir / "fuse"
        self.mountpoint = t.dir / "mnt"
        self.fuse.mkdir()
        self.mountpoint.mkdir()
        self.process = self.loop = None
        self.mounted = False
        t.later(self.detach)

    def attach(self):
        command = [*self.root, "nbdfuse", str(self.fuse), self.server.uri()]
        print("$", *command, "&", flush=True)
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        deadline = time.monotonic() + 20
        while not os.path.ismount(self.fuse):
            if self.process.poll() is not None:
                raise Skip(
                    f"this machine forbids FUSE ({self.process.stderr.read().strip()[:200]})"
                )
            assert time.monotonic() < deadline, "nbdfuse does not mount"
            time.sleep(0.05)
        made = subprocess.run(
            [*self.root, "losetup", "--find", "--show", str(self.fuse / "nbd")],
            capture_output=True,
            text=True,
            check=False,
        )
        if made.returncode != 0:
            raise Skip(f"this machine forbids loop devices ({made.stderr.strip()[:200]})")
        self.loop = made.stdout.strip()
        return self.loop

    def mount(self, *options):
        self.t.run(*self.root, "mount", *options, self.loop, self.mountpoint)
        self.mounted = True
        return self.mountpoint

    def unmount(self):
        self.t.run(*self.root, "umount", self.mountpoint)
        self.mounted = False

    def detach(self, dead=False):
        """Takes everything down, in any state it may be in; `dead`: the server is gone, so nothing
        can be written any more."""
        if self.mounted:
            self.unmount()
        if self.loop:
            self.t.run(
                *self.root, "blockdev", "--flushbufs", self.loop, ok=range(256) if dead else (0,)
            )
            self.t.run(*self.root, "losetup", "--detach", self.loop)
            self.loop = None
        if self.process:
            # One whose nbdfuse has ended with its server is still mounted, but cannot be looked at.
            if f" {self.fuse} " in pathlib.Path("/proc/mounts").read_text():
                deadline = time.monotonic() + 20
                # The loop device lets go of the file a moment after it is detached.
                while self.t.run(*self.root, "umount", self.fuse, ok=range(256)).returncode != 0:
                    assert time.monotonic() < deadline, "nbdfuse cannot be unmounted"
                    time.sleep(0.1)
            self.process.wait(20)
            self.process = None


def life_of(t, make, check, *mount_options):
    """Filled, unmounted, checked, compared; then used a while, the server restarted in between, and
    all of that again."""
    server = t.up(volume_size="1G")
    disk = Disk(t, server)
    tree = t.dir / "tree"
    sample_tree(tree, 48 * MIB)
    loop = disk.attach()
    t.run(*disk.root, *make, loop)
    mounted = disk.mount(*mount_options)
    t.run(*disk.root, "cp", "-a", tree, mounted / "first")
    disk.unmount()
    t.run(*disk.root, *check, loop)
    disk.mount("-o", "ro")
    t.run(*disk.root, "diff", "-r", "--no-dereference", tree, mounted / "first")
    disk.unmount()
    disk.detach()

    server.restart()
    loop = disk.attach()
    t.run(*disk.root, *check, loop)
    disk.mount(*mount_options)
    t.run(*disk.root, "diff", "-r", "--no-dereference", tree, mounted / "first")
    # Space is given back and used again.
    t.run(*disk.root, "cp", "-a", mounted / "first", mounted / "second")
    t.run(*disk.root, "rm", "-rf", mounted / "first")
    disk.t.run(*disk.root, "fstrim", mounted, ok=(0, 1))
    disk.unmount()
    t.run(*disk.root, *check, loop)
    disk.mount("-o", "ro")
    t.run(*disk.root, "diff", "-r", "--no-dereference", tree, mounted / "second")
    disk.unmount()
    disk.detach()
    shutil.rmtree(tree)
    server.stop()
    server.check()


@limit(200)
def test_ext4(t):
    t.need("mkfs.ext4", "e2fsck")
    life_of(t, ["mkfs.ext4", "-q", "-F"], ["e2fsck", "-fn"])


@limit(200)
def test_xfs(t):
    t.need("mkfs.xfs", "xfs_repair")
    if "xfs" not in pathlib.Path("/proc/filesystems").read_text():
        subprocess.run([*t.as_root(), "modprobe", "xfs"], capture_output=True, check=False)
        if "xfs" not in pathlib.Path("/proc/filesystems").read_text():
            raise Skip("this machine's kernel has no XFS")
    life_of(t, ["mkfs.xfs", "-q", "-f"], ["xfs_repair", "-n"])
