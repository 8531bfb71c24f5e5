"""A file of a device that does not do as it should: nbdfuse over nbdkit with filters."""

import os
import pathlib
import socket
import subprocess
import time

from .case import Skip


class FuseFile:
    """The file is `path`; what it holds is in `backing`. It is there when nbdkit has made the files
    `told`, too. `plugin`: what serves the backing file, if not nbdkit's own plugin for files."""

    def __init__(self, t, name, size, filters, settings, told=(), plugin=None):
        t.need("nbdkit", "nbdfuse", "fusermount3")
        if os.getuid() != 0 or not pathlib.Path("/dev/fuse").exists():
            raise Skip("only root can mount here, and where there is /dev/fuse")
        self.backing, listens = t.dir / f"{name}.backing", t.dir / f"{name}.nbdkit"
        self.path = t.dir / f"{name}.img"
        for path, length in ((self.backing, size), (self.path, 0)):
            with open(path, "wb") as file:
                file.truncate(length)
        plugin = plugin or ["file", self.backing]
        filtered = [*(f"--filter={one}" for one in filters), *plugin, *settings]
        made = (listens, *told)
        self.start(
            t,
            ["nbdkit", "-f", "-U", listens, *filtered],
            lambda: all(path.exists() for path in made),
        )
        self.start(
            t,
            ["nbdfuse", self.path, f"nbd+unix:///?socket={listens}"],
            lambda: self.path.stat().st_size == size,
        )

    def start(self, t, command, is_up):
        process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL)
        t.later(process.wait)
        t.later(process.terminate)
        while not is_up():
            assert process.poll() is None, f"{command[0]} does not serve"
            time.sleep(0.02)


class Unflushed(FuseFile):
    """A file of a device whose flushes fail while the file `fails` is there."""

    def __init__(self, t, name, size):
        self.fails, held = t.dir / f"{name}.fails", t.dir / f"{name}.backing"
        plugin = [
            "eval",
            f"get_size=echo {size}",
            f"pread=dd skip=$4 count=$3 if={held} iflag=count_bytes,skip_bytes",
            f"pwrite=dd oflag=seek_bytes conv=notrunc seek=$4 of={held}",
            f"flush=if test -e {self.fails}; then echo EIO >&2; exit 1; fi",
        ]
        super().__init__(t, name, size, [], [], plugin=plugin)


class Still(FuseFile):
    """A file of a device that stands still when told so."""

    def __init__(self, t, name, size):
        self.control = t.dir / f"{name}.pause"
        super().__init__(
            t, name, size, ["pause"], [f"pause-control={self.control}"], told=[self.control]
        )

    def stop(self):
        self.tell(b"p")

    def go_on(self):
        self.tell(b"r")

    def tell(self, letter):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as told:
            told.settimeout(20)
            told.connect(str(self.control))
            told.sendall(letter)
            assert told.recv(1) == letter.upper(), "nbdkit's filter does not obey"
