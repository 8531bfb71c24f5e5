"""`kill -9` during fsync-heavy load, again and again: every flushed block is there, every block is
whole, the offline check is clean."""

import random
import time

from harness.case import limit
from harness.history import History, Load


def cycle(t, server, history, rounds, seed, check_each=False):
    rng = random.Random(seed)
    unflushed = 0
    for number in range(rounds):
        load = Load(history, server.connect, seed=(seed, number))
        time.sleep(rng.uniform(0.05, 1.6))
        server.kill()
        load.finish()
        if check_each:
            server.check()
        server.start()
        unflushed += history.verify(server.connect())
    print(
        f"{history.stamp} writes, {history.flushes} flushes, "
        f"{unflushed} blocks held unflushed writes after a kill"
    )
    assert history.flushes > rounds, "hardly a flush got through: the load tests nothing"


@limit(180)
def test_kill_in_a_loop(t):
    """Seven kills; blocks overwritten often."""
    history = History(6000)
    server = t.up(volume_size="24M", size="1G")
    cycle(t, server, history, 7, seed=time.time_ns())
    server.stop()
    server.check()


@limit(180)
def test_kill_and_check_each_time(t):
    """After every kill the offline check is clean before anything has been repaired."""
    history = History(24000)
    server = t.up(volume_size="96M", size="2G")
    cycle(t, server, history, 4, seed=time.time_ns(), check_each=True)
    server.stop()
    server.check()


@limit(120)
def test_kill_one_copy(t):
    """A pool of one copy on one device."""
    history = History(3000)
    devices = t.devices(1 << 30)
    t.forebay("create", "--device", devices[0], "--copies", "1")
    server = t.serve(devices)
    server.volume("create", "vol0", "--size", "12M")
    cycle(t, server, history, 4, seed=time.time_ns())
    server.stop()
    server.check()


@limit(120)
def test_kill_while_starting(t):
    """Killed before it has answered, many times: an open changes nothing that a next open cannot
    take."""
    history = History(3000)
    server = t.up(volume_size="12M", size="1G")
    load = Load(history, server.connect, seed=1)
    time.sleep(1)
    server.kill()
    load.finish()
    rng = random.Random(5)
    for _ in range(15):
        server.spawn()
        time.sleep(rng.uniform(0, 0.15))
        server.kill()
    server.start()
    history.verify(server.connect())
    server.stop()
    server.check()


@limit(120)
def test_clean_stop_under_load(t):
    """SIGTERM while clients write: it ends by itself and in time, and nothing flushed is lost."""
    history = History(3000)
    server = t.up(volume_size="12M", size="1G")
    for number in range(3):
        load = Load(history, server.connect, seed=number)
        time.sleep(0.7)
        server.stop()
        load.finish()
        server.check()
        server.start()
        history.verify(server.connect())
