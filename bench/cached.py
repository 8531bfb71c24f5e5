"""The servers of bench/cache.py: a cache in front of a slow pool, and what it is compared with.

A server is stopped (SIGSTOP) while another one has its turn: write-back in the background is work
of its own turn, and is paid there.
"""

import json
import os
import pathlib
import signal
import subprocess

import fio
import pagecache
import servers
from servers import GIB

CLEAN_LIMIT_S = 1800


class Paused:
    """A server that runs only in its turn."""

    def pause(self):
        if self.process:
            self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        if self.process:
            self.process.send_signal(signal.SIGCONT)

    def stop(self):
        self.resume()
        super().stop()

    def clean(self):
        """Everything is written back."""
        self.settle()

    def cache_status(self):
        return None

    def set_target(self):
        """The part of the volume that fits in the cache."""
        words, _ = self.fio_target()
        return words, self.set_bytes


class Cached(Paused, servers.Forebay):
    """A pool of one copy on an emulated rotating disk, and a cache; both files are written through
    before. The volume is filled before there is a cache and before the disk is slow."""

    def prepare(self):
        self.emulate = ""
        self.cached = False
        self.more = []
        self.cache_file = self.file.with_name("cache.img")
        self.lay_out(self.size * 2 + GIB)
        self.call("create", "--device", self.file, "--copies", "1", "--force")
        self.spawn(self.command())
        self.call(
            "volume", "create", self.export, "--size", str(self.size), "--socket", self.control
        )
        if self.fill_first:
            fio.fill(self.fio_target())
        super().stop()
        fio.fill(
            (
                [
                    f"--filename={self.cache_file}",
                    "--ioengine=io_uring",
                    "--direct=1",
                    # A cache is attached to what is empty.
                    "--zero_buffers",
                ],
                self.cache_bytes,
            )
        )
        self.cached = True
        self.emulate = self.emulated
        self.spawn(self.command())

    def command(self):
        device = str(self.file).replace(",", ",,") + (
            f",emulate={self.emulate}" if self.emulate else ""
        )
        words = [
            self.bin, "serve", "--device", device, "--nbd-socket", self.socket, "--socket",
            self.control,
        ]
        if self.cached:
            words += ["--cache", self.cache_file, "--cache-size", self.cache_bytes]
        return words + self.more

    def cache_status(self):
        words = [self.bin, "cache", "status", "--json", "--socket", self.control]
        return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    def clean(self):
        subprocess.run(
            [self.bin, "cache", "flush", "--socket", self.control],
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=CLEAN_LIMIT_S,
        )


class NbdkitCache(Paused, servers.Nbdkit):
    """nbdkit's cache filter, written back at a flush; the disk behind it is not slow. Its own file
    goes through the page cache."""

    name = "nbdkit cache"
    wants_warm = None
    block = 65536

    def spawn(self, command):
        # The filter makes its file there.
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = str(self.file.parent)
        try:
            super().spawn(command)
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before

    def command(self):
        filtered = [
            "--filter=cache", "file", self.file, "cache=writeback", "cache-on-read=true",
            f"cache-min-block-size={self.block}",
        ]
        return ["nbdkit", "--foreground", "--exit-with-parent", "-U", self.socket, *filtered]


class NbdkitCacheSmall(NbdkitCache):
    """The same with blocks of the size of the requests, which is not its default."""

    name = "nbdkit cache 4k"
    block = 4096


class NbdkitCacheCold(NbdkitCache):
    """The same with its file on the disk, not in memory: dropped from the page cache before each
    run, since a cache that is larger than the memory would not be there either."""

    name = "nbdkit cache cold"

    def make_ready(self):
        if self.in_memory:
            return 1.0
        for link in pathlib.Path(f"/proc/{self.pid}/fd").iterdir():
            if os.readlink(link).startswith(str(self.file.parent)) and os.readlink(link).endswith(
                "(deleted)"
            ):
                pagecache.evict(link)
                return pagecache.resident(link)
        raise RuntimeError("no file of the cache filter")


class NbdkitNull(Paused, servers.Server):
    """A server that does nothing, fast: what a client and a socket cost by themselves."""

    name = "nbdkit null"

    def fill_file(self):
        self.file.touch()

    def make_ready(self):
        return 1.0

    def command(self):
        return [
            "nbdkit", "--foreground", "--exit-with-parent", "-U", self.socket, "null",
            f"size={self.size}",
        ]


class Nbdkit(Paused, servers.Nbdkit):
    pass


class QemuNbd(Paused, servers.QemuNbd):
    pass


class Raw(Paused, servers.Raw):
    """The device that a cache would be on, as large as the cache."""

    def prepare(self):
        self.size = self.cache_bytes
        super().prepare()


KINDS = {
    "forebay": Cached, "nbdkit-cache": NbdkitCache, "nbdkit-cache-cold": NbdkitCacheCold,
    "nbdkit-cache-4k": NbdkitCacheSmall, "qemu-nbd": QemuNbd, "nbdkit": Nbdkit,
    "nbdkit-null": NbdkitNull, "raw": Raw,
}


def start(
    kind, work, options, *, cache_gib, volume_gib, set_gib, fill_first=True, sparse=False,
    emulate=None,
):
    """A server of `kind` with a volume, and a cache where it has one. `sparse`: the pool's file;
    `emulate`: not as the options say."""
    made = type(
        kind,
        (KINDS[kind],),
        {
            "cache_bytes": int(cache_gib * GIB),
            "set_bytes": int(set_gib * GIB),
            "fill_first": fill_first,
            "emulated": options.emulate if emulate is None else emulate,
        },
    )
    # Only the one with a cache needs more than the part that is used.
    return made(work, volume_gib if kind == "forebay" else set_gib, options, sparse=sparse)
