"""`forebay up` in a new directory: two sparse pool files, in memory but as slow as a rotating disk,
and a sparse cache file on the disk."""

import json
import pathlib
import shutil
import tempfile

import control
import fio
import servers

MEMORY = pathlib.Path("/dev/shm")
POOL_SIZE = "40G"
VOLUME_SIZE = 32 << 30


class Up(servers.Server):
    """A server that is used once. `settings`: keys of [cache] for which `forebay up` has no option.
    `filled`: so many bytes of the volume are written before there is a cache and before the pool is
    slow."""

    name = "forebay"
    export = "vol0"

    def __init__(self, options, work, cache_bytes, *, settings=None, filled=0):
        self.bin = options.bin
        self.emulate = options.emulate
        self.cache_bytes = cache_bytes
        self.cache_file = work / "cache.img"
        self.size = VOLUME_SIZE
        self.process = None
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=MEMORY))
        self.socket = self.directory / "nbd.sock"
        self.control = self.directory / "control.sock"
        try:
            self.prepare(settings, filled)
        except BaseException:
            self.discard()
            raise

    @property
    def uri(self):
        return f"nbd+unix:///{self.export}?socket={self.socket}"

    def prepare(self, settings, filled):
        if filled:
            self.spawn(self.command(cache_bytes=0, emulate=""))
            words, _ = self.fio_target()
            fio.fill((words, filled))
            self.stop()
        self.spawn(self.command(self.cache_bytes, self.emulate))
        if settings:
            self.stop()
            config = self.directory / "forebay.toml"
            config.write_text(self.config(settings))
            self.spawn([self.bin, "serve", "--config", config])

    def command(self, cache_bytes, emulate):
        words = [self.bin, "up", self.directory, "--size", POOL_SIZE, "--volume-size", VOLUME_SIZE]
        words += ["--emulate", emulate] if emulate else []
        return [*words, "--cache", self.cache_file, "--cache-size", cache_bytes]

    def config(self, settings):
        more = f', emulate = "{self.emulate}"' if self.emulate else ""
        devices = [
            f"{{ path = {json.dumps(str(self.directory / name))}{more} }}"
            for name in ("pool0.img", "pool1.img")
        ]
        lines = [f"devices = [{', '.join(devices)}]"]
        lines += ["[nbd]", f"socket = {json.dumps(str(self.socket))}"]
        lines += ["[control]", f"socket = {json.dumps(str(self.control))}"]
        lines += ["[cache]", f"path = {json.dumps(str(self.cache_file))}"]
        lines += [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
        return "\n".join([*lines, ""])

    def cache_status(self):
        with control.Control(self.control) as asked:
            return asked.cache_status()

    def kill(self):
        """Ends it; its dirty data need not be written back."""
        if self.process:
            self.process.kill()
            self.process.wait()

    def discard(self):
        """Ends it and removes its files."""
        self.kill()
        shutil.rmtree(self.directory)
        self.cache_file.unlink(missing_ok=True)
