"""Time from exec to the first NBD reply, as the pool grows."""

import statistics
import subprocess
import sys
import time

import fio
import nbd_client
from servers import GIB, Forebay

TRIES = 5
SCATTER_S = 15


def measure(options, work):
    """One pool that grows; at each size written in order, then with 4 KiB blocks overwritten all
    over it."""
    rows = []
    for size in options.start:
        print(f"start: filling {size} GiB", file=sys.stderr, flush=True)
        server = Forebay(work, size, options)
        try:
            rows.append(restarts(server, size, "in order"))
            fio.scatter(server.fio_target(), SCATTER_S)
            rows.append(restarts(server, size, "overwritten at random"))
        finally:
            server.stop()
            server.file.unlink()
    return rows


def restarts(server, size, how):
    times = []
    memory = server.memory_peak_bytes()
    for number in range(TRIES):
        # The last one follows a kill, so that it is not the clean state that is measured alone.
        if number == TRIES - 1:
            server.process.kill()
            server.process.wait()
        else:
            server.stop()
        began = time.monotonic()
        log = open(f"{server.socket}.log", "ab")
        server.process = subprocess.Popen(
            [str(word) for word in server.command()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        while not nbd_client.first_reply(server.socket, server.export):
            if server.process.poll() is not None or time.monotonic() - began > 120:
                raise RuntimeError("the server does not come back")
            time.sleep(0.001)
        times.append(time.monotonic() - began)
    return {
        "gib": size, "how": how, "median_s": statistics.median(times), "max_s": max(times),
        "after_kill_s": times[-1], "memory_peak_bytes": memory, "bytes": size * GIB,
    }
