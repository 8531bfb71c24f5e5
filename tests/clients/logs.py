"""The log of a server, and those who read it."""

import os
import threading
import time

from harness.case import once, pool_only
from harness.data import GIB, MIB, noise

PATIENCE_S = 30
# A request does not wait for the log, however slow this machine is.
REQUEST_S = 5


def full_pipe():
    """Both ends of a pipe that takes nothing more."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(write, b"-" * size)
        except BlockingIOError:
            pass
    # The server has the same end, and may wait there.
    os.set_blocking(write, True)
    return read, write


def logs_to(server, command, write):
    """Has a server write all that it says to this end of a pipe."""
    server.inherits = [write]
    server.command = ["sh", "-c", f'exec "$@" >&{write} 2>&{write}', "sh", *command]


@once
@pool_only
def test_a_log_that_nobody_reads(t):
    """Clients are served as ever; what was said comes out when somebody reads; and an end does not
    wait for a reader."""
    server = t.serve(t.devices(GIB), "--log", "human", start=False)
    t.forebay("create", "--device", server.devices[0])
    command = server.command
    server.environment = {"FOREBAY_LOG": "debug"}
    read, write = full_pipe()
    logs_to(server, command, write)
    server.start()
    server.volume("create", "vol0", "--size", "64M")
    data = noise("logs", MIB)
    for at in range(32):
        begun = time.monotonic()
        handle = server.connect()
        handle.pwrite(data, at * MIB)
        handle.flush()
        assert handle.pread(MIB, at * MIB) == data
        handle.shutdown()
        assert time.monotonic() - begun < REQUEST_S, "a request waited for the log"
    os.close(write)
    said = bytearray()

    def take():
        while more := os.read(read, 65536):
            said.extend(more)

    reader = threading.Thread(target=take)
    reader.start()
    server.stop()
    reader.join(PATIENCE_S)
    os.close(read)
    text = said.lstrip(b"-").decode()
    places = [text.index(words) for words in ("serving", "Serving the pool", "stopped")]
    assert places == sorted(places), text

    read, write = full_pipe()
    logs_to(server, command, write)
    server.start()
    os.close(write)
    begun = time.monotonic()
    server.stop()
    assert time.monotonic() - begun < PATIENCE_S / 2, "the end waited for a reader"
    # The last word of a process that fails to start does not hold it up either.
    left, write = full_pipe()
    logs_to(server, [*command, "--device", str(t.dir / "none.img")], write)
    server.devices[0].rename(t.dir / "away")
    server.spawn()
    os.close(write)
    assert server.process.wait(PATIENCE_S) == 1
    os.close(read)
    os.close(left)
