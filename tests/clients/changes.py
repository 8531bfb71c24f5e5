"""All that an administrator may do while clients write, in random order, and kills between.

FOREBAY_CHANGES_SECONDS says how long each test does it, FOREBAY_CHANGES_SEED in which order.
"""

import itertools
import json
import os
import random
import signal
import time

from harness.case import limit, once
from harness.data import MIB
from harness.history import History, Load

SECONDS = float(os.environ.get("FOREBAY_CHANGES_SECONDS", 30))
VOLUMES = ("vol0", "vol1")
BLOCKS = 6000
DEVICE = 256 * MIB
MOST_DEVICES = 6


class Administrator:
    """A pool of two copies on three devices, its cache, and who changes them."""

    def __init__(self, t, rng, directory):
        self.t = t
        self.rng = rng
        self.directory = directory
        self.made = 0
        self.done = {}
        devices = [self.new_file(DEVICE) for _ in range(3)]
        self.cache = directory / "cache0"
        listed = [word for device in devices for word in ("--device", device)]
        t.forebay(
            "create", *listed, "--copies", "2", "--cache", self.cache, "--cache-size", "64M"
        )
        self.server = t.serve(devices, "--cache", self.cache)
        for name in VOLUMES:
            self.server.volume("create", name, "--size", str(BLOCKS * 4096))

    def new_file(self, size):
        path = self.directory / f"device{self.made}"
        self.made += 1
        with open(path, "wb") as file:
            file.truncate(size)
        return path

    def devices(self):
        """The paths of the pool's devices, and of those that are not in use."""
        found = [one for one in self.server.status()["pool"]["devices"] if one["path"]]
        away = [one["path"] for one in found if one["state"] != "online"]
        return [one["path"] for one in found], away

    def command(self, *words):
        """Types a command. It may be refused, as what was done before may not have ended."""
        done = self.t.forebay(*words, "--socket", self.server.control, ok=(0, 1, 2))
        assert "panicked" not in done.stderr, done.stderr
        if done.returncode == 0:
            name = " ".join(words[:2])
            self.done[name] = self.done.get(name, 0) + 1
        elif not done.stderr.strip():
            raise AssertionError("refused without a word")
        return done.returncode == 0

    def change(self):
        rng = self.rng
        paths, away = self.devices()
        chosen = rng.choice(paths)
        if away and rng.random() < 0.3:
            self.command("device", "online", rng.choice(away))
        kind = rng.choice(("devices", "devices", "cache", "volumes", "settings", "scrub"))
        if kind == "devices" and not away:
            size = rng.choice((DEVICE // 2, DEVICE, DEVICE + 30 * MIB))
            words = [
                ("device", "offline", chosen),
                ("device", "rebalance"),
                ("pool", "set", f"copies={rng.choice((1, 2, 2, 3))}"),
            ]
            if len(paths) < MOST_DEVICES:
                new = self.new_file(size)
                words += [("device", "replace", chosen, new), ("device", "add", new)]
            if len(paths) > 3:
                words += [("device", "remove", chosen)] * 2
            self.command(*rng.choice(words))
        elif kind == "cache" and self.cache is None:
            self.attach()
        elif kind == "cache":
            mode = rng.choice(("writeback", "writeback", "writethrough", "writearound", "none"))
            done = rng.choice((("mode", rng.choice(VOLUMES), mode), ("flush",), ("detach",)))
            if self.command("cache", *done) and done == ("detach",):
                self.cache = None
        elif kind == "volumes":
            name = f"other{rng.randrange(3)}"
            words = (
                ("create", name, "--size", "100M"),
                ("resize", name, "--size", "60M", "--shrink"),
                ("delete", name, "--yes"),
            )
            self.command("volume", *rng.choice(words))
        elif kind == "settings":
            key, value = rng.choice(
                (
                    ("writeback_rate_max", "8M"), ("writeback_rate_max", "1G"),
                    ("max_lag", "2s"), ("max_lag", "30s"),
                    ("dirty_target", "10"), ("dirty_target", "50"),
                )
            )
            self.command("set", key, value)
        elif kind == "scrub":
            self.command("scrub", rng.choice(("start", "start", "pause", "resume", "cancel")))

    def attach(self):
        cache = self.directory / f"cache{self.made}"
        self.made += 1
        size = self.rng.choice(("40M", "64M", "128M"))
        if self.command("cache", "attach", cache, "--size", size):
            self.cache = cache

    def restart(self, number, loads=()):
        """Ends the server by this signal, looks at what it leaves, and starts it again."""
        leaving = self.moves()["leaving"]
        paths, _away = self.devices()
        if number == signal.SIGKILL:
            self.server.kill()
        else:
            self.server.stop(number)
        for load in loads:
            load.finish()
        server = self.server
        cache = ["--cache", self.cache] if self.cache else []
        paths = self.checked(paths, leaving, cache)
        listed = [word for path in paths for word in ("--device", path)]
        sockets = ["--nbd-socket", server.socket, "--socket", server.control]
        server.command = [str(word) for word in (self.t.bin, "serve", *listed, *cache, *sockets)]
        server.devices = paths
        server.start()

    def checked(self, paths, leaving, cache):
        """Checks the pool; returns its devices. Of those that were leaving some may have left."""
        leaving = [path for path in paths if path in leaving]
        for count in range(len(leaving) + 1):
            for gone in itertools.combinations(leaving, count):
                left = [path for path in paths if path not in gone]
                listed = [word for path in left for word in ("--device", path)]
                # 1: one of them is not the pool's. 5: one is out of use, and the others are clean.
                done = self.t.forebay("check", *listed, *cache, ok=(0, 1, 5))
                if done.returncode != 1:
                    return left
        raise AssertionError(f"no check of {paths} without some of {leaving}: {done.stderr}")

    def bring_back(self):
        """Waits until all devices are in use, and nothing is left to be moved."""
        end = time.monotonic() + 60
        while away := self.devices()[1]:
            assert time.monotonic() < end, f"still not in use: {away}"
            for path in away:
                self.command("device", "online", path)
            time.sleep(0.5)
        while (moves := self.moves())["state"] != "none":
            assert time.monotonic() < end, f"moves do not end: {moves}"
            time.sleep(0.2)

    def moves(self):
        done = self.t.forebay("device", "list", "--json", "--socket", self.server.control)
        return json.loads(done.stdout)["moves"]


@once
@limit(120 + 2 * int(SECONDS))
def test_changes_beside_load_and_kills(t):
    """What was flushed is there after each kill, each check is clean, and so is the pool in the
    end."""
    seed = int(os.environ.get("FOREBAY_CHANGES_SEED", time.time_ns()))
    print("seed", seed)
    rng = random.Random(seed)
    admin = Administrator(t, rng, t.memory())
    histories = {name: History(BLOCKS) for name in VOLUMES}
    end = time.monotonic() + SECONDS
    rounds = 0
    while time.monotonic() < end:
        loads = [
            Load(
                history, lambda name=name: admin.server.connect(name), writers=2,
                seed=(seed, rounds, name),
            )
            for name, history in histories.items()
        ]
        for _ in range(rng.randrange(3, 12)):
            admin.change()
            time.sleep(rng.uniform(0, 0.6))
        admin.restart(rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)), loads)
        for name, history in histories.items():
            history.verify(admin.server.connect(name))
        rounds += 1
    print(rounds, "rounds:", admin.done)
    flushes = sum(history.flushes for history in histories.values())
    assert flushes > 10 * rounds, f"{flushes} flushes: the load tests nothing"
    admin.bring_back()
    # One may be paused.
    admin.command("scrub", "cancel")
    t.forebay("scrub", "start", "--wait", "--socket", admin.server.control)
    admin.restart(signal.SIGTERM)
    for name, history in histories.items():
        history.verify(admin.server.connect(name))
    admin.server.stop()
    cache = ["--cache", admin.cache] if admin.cache else []
    listed = [word for path in admin.server.devices for word in ("--device", path)]
    t.forebay("check", "--data", *listed, *cache)
