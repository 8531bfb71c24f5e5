"""The same service without io_uring (`--io posix`): a basic subset, and images written by one
backend read by the other."""

import random
import time

from harness.case import limit
from harness.data import MIB, noise
from harness.history import History, Load


@limit(120)
def test_basic(t):
    """Tools, patterns, restart, check, and the two backends in turn on one pool."""
    server = t.up("--io", "posix", size="1G", volume_size="64M")
    t.run("nbdinfo", "--size", server.uri())
    image = t.dir / "image"
    image.write_bytes(noise("posix", 48 * MIB))
    t.run("nbdcopy", "--flush", image, server.uri())
    t.run("nbdcopy", server.uri(), t.dir / "out")
    t.run("cmp", "-n", 48 * MIB, image, t.dir / "out")
    t.run(
        "qemu-io", "-f", "raw", "-c", "write -P 9 50M 64k", "-c", "read -P 9 50M 64k", "-c",
        "discard 50M 4k", "-c", "flush", server.uri(),
    )
    server.stop()
    server.check()
    server.command = [word for word in server.command if word not in ("--io", "posix")]
    server.start()
    handle = server.connect()
    assert handle.pread(4 * MIB, 0) == noise("posix", 48 * MIB)[: 4 * MIB]
    handle.pwrite(b"u" * 4096, 60 * MIB)
    server.stop()
    server.start("--io", "posix")
    assert server.connect().pread(4096, 60 * MIB) == b"u" * 4096


@limit(120)
def test_kill(t):
    history = History(3000)
    server = t.up("--io", "posix", volume_size="12M", size="1G")
    rng = random.Random(11)
    for number in range(4):
        load = Load(history, server.connect, seed=number)
        time.sleep(rng.uniform(0.2, 1.2))
        server.kill()
        load.finish()
        server.start()
        history.verify(server.connect())
    server.stop()
    server.check()
