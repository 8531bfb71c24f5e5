"""One scenario: a server under load whose devices are recorded, then the states that a power cut
may leave, each opened and compared.

    base        a pool, with or without a cache, a volume, ended cleanly
    lives       load, kill -9 and restart as often as the plan says; in the last life the fault,
    if there is one images      the power goes at a moment of the recording: `forebay check`,
    `forebay serve`, every block read; then the pool without its cache

What must hold (timeline.py): each block holds what it held at the last flush that was answered,
or something newer; where the fault leaves a good copy of everything there is no error at all; the
check is clean; and the pool alone is one moment of the past. A server whose devices failed holds
while it runs what was written last, or says that it does not know; and every request is answered.
"""

import json
import pathlib
import pickle
import random
import shutil
import subprocess
import tempfile
import time

import nbd

from ..data import BLOCK, KIB, MIB
from ..server import Server
from . import images, recording
from .load import Load
from .timeline import Timeline, stamps_of

DEVICE_BYTES = 128 * MIB
CACHE_BYTES = 64 * MIB
# As wide as the server reads at most for one request here.
STEP = 256
# A life that has just begun.
SOON_NS = 60_000_000


class Wrong(Exception):
    """A promise that was broken; the message is for people."""


class Scenario:
    """Has its files in memory where that is possible, and leaves none unless it failed."""

    def __init__(self, case, plan, library, kept):
        self.case = case
        self.plan = plan
        self.kept = pathlib.Path(kept)
        base = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="forebay-crash-", dir=base))
        case.later(lambda: shutil.rmtree(self.dir, ignore_errors=True))
        for name in ("live", "before", "image", "alone"):
            (self.dir / name).mkdir()
        self.names = [f"pool{number}.img" for number in range(plan.devices)] + (
            ["cache.img"] if plan.mode else []
        )
        self.library = library
        self.timeline = Timeline(plan.blocks)
        self.log = None
        self.memo = {}
        self.opened = 0
        self.faulted_at = None
        # When the server was started again.
        self.restarts = []
        self.pending = 0

    # The server.

    def configuration(self, home, cached):
        """Writes the server's configuration for the files in `home`."""
        sections = {
            "nbd": ['socket = "nbd.sock"'],
            "control": ['socket = "control.sock"'],
            "pool": [],
            "cache": [],
            "io": ['backend = "posix"'],
        }
        for section, key, value in self.plan.settings:
            sections[section].append(f"{key} = {value}")
        if cached:
            sections["cache"].append('path = "cache.img"')
        else:
            # `--forget-cache` is told which.
            sections["cache"] = []
        pool = [name for name in self.names if name != "cache.img"]
        text = f"devices = {json.dumps(pool)}\n"
        for name, lines in sections.items():
            text += "".join(f"{line}\n" for line in [f"[{name}]", *lines]) if lines else ""
        path = home / "forebay.toml"
        path.write_text(text)
        return path

    def server(self, home, *more, cached=None, environment=None):
        cached = self.plan.mode is not None if cached is None else cached
        command = [self.case.bin, "serve", "--config", self.configuration(home, cached), *more]
        devices = [home / name for name in self.names if name != "cache.img"]
        return Server(
            self.case, command, home / "nbd.sock", home / "control.sock", devices, environment
        )

    def base(self):
        live = self.dir / "live"
        words = []
        for name in self.names[: self.plan.devices]:
            words += ["--device", live / name]
        words += ["--size", DEVICE_BYTES]
        if self.plan.mode:
            words += ["--cache", live / "cache.img", "--cache-size", CACHE_BYTES]
        self.case.forebay("create", *words)
        server = self.server(live).start()
        server.volume("create", "vol0", "--size", self.plan.blocks * BLOCK)
        if self.plan.mode:
            server.cache("mode", "vol0", self.plan.mode)
        server.stop()
        for name in self.names:
            images.copy_sparse(live / name, self.dir / "before" / name)

    # Recording.

    def record(self):
        """All lives of the server. It is dead afterwards."""
        self.base()
        plan, rng = self.plan, random.Random(f"record {self.plan.seed}")
        devices = [self.dir / "live" / name for name in self.names]
        self.log = recording.Recording(self.dir / "log", self.library, devices)
        self.case.later(self.log.close)
        undo = plan.revert and "flush" in plan.fault
        self.log.set(plan.seed, True, plan.delay_us, plan.revert, undo, plan.lost_percent)
        for life in range(plan.kills + 1):
            self.restarts += [time.monotonic_ns()] if life > 0 else []
            server = self.server(self.dir / "live", environment=self.log.environment()).start()
            if life > 0:
                self.after_kill(server)
            load = Load(self.timeline, server.connect, plan, life)
            time.sleep(plan.seconds * rng.uniform(0.3, 1))
            last = life == plan.kills
            if last and plan.fault not in ("none", "unreadable"):
                self.order_fault(load)
                time.sleep(plan.seconds * rng.uniform(0.5, 1.5))
            if last:
                self.at_rest(server, load)
            killed = time.monotonic_ns()
            if server.alive():
                server.kill()
            if not load.finish():
                raise Wrong("a client still waits for the dead server")
            if load.unexpected:
                raise Wrong(f"a client was told {load.unexpected[0]!r}")
            self.log.settle_in_flight(killed)

    def order_fault(self, load):
        load.faulty = True
        self.faulted_at = time.monotonic_ns()
        for device in self.plan.faulty():
            if "flush" in self.plan.fault:
                self.log.fail_flushes(device, self.plan.fault_after, below=self.plan.fault_below)
            else:
                self.log.fail_writes(device, self.plan.fault_after, done=self.plan.seed % 2 == 0)

    def after_kill(self, server):
        """Nothing that was written before the kill is gone, as the devices have kept it; what is
        there now is what counts from here on.
        """
        sent = time.monotonic_ns()
        held = self.read(server)
        if None in held:
            raise Wrong(f"after kill -9: {held.count(None)} blocks cannot be read")
        self.compare("after kill -9", sent, held)
        self.timeline.found(sent, held)

    def at_rest(self, server, load):
        """The load ends while the server runs: each request is answered, and each block is what
        was written last or an error.
        """
        if not load.finish():
            raise Wrong("a request was not answered: the server hangs")
        if load.unexpected:
            raise Wrong(f"a client was told {load.unexpected[0]!r}")
        if not server.alive():
            if not load.faulty or server.process.returncode not in range(1, 100):
                raise Wrong(f"the server ended with {server.process.returncode}")
            return
        said = server.log_text()
        if self.log.failed()[0] and " ERROR " not in said and " WARN " not in said:
            raise Wrong("a flush failed, and the server's log does not say so")
        held = self.read(server)
        if None in held and self.plan.fault in ("none", "unreadable"):
            raise Wrong(f"{held.count(None)} blocks cannot be read, without any fault")
        wrong = self.timeline.wrong_now(held)
        if wrong:
            raise Wrong(f"the server that runs holds {len(wrong)} wrong blocks: {wrong[0]}")

    # Reading.

    def read(self, server):
        """The states of all blocks; None where there is an error."""
        handle = server.connect()
        held = []
        for first in range(0, self.plan.blocks, STEP):
            count = min(STEP, self.plan.blocks - first)
            try:
                held += self.states(first, handle.pread(count * BLOCK, first * BLOCK))
            except nbd.Error as error:
                if handle.aio_is_dead() or handle.aio_is_closed():
                    raise Wrong(f"the server went away: {error}") from None
                for block in range(first, first + count):
                    try:
                        held += self.states(block, handle.pread(BLOCK, block * BLOCK))
                    except nbd.Error:
                        held.append(None)
        handle.shutdown()
        return held

    def states(self, first, data):
        """As `stamps_of`, but a block that was seen before is known at once."""
        held = []
        for at in range(0, len(data), BLOCK):
            key = (first + at // BLOCK, bytes(data[at : at + BLOCK]))
            if key not in self.memo:
                self.memo[key] = stamps_of(*key)[0]
            held.append(self.memo[key])
        return held

    def compare(self, what, moment, held, floors=None):
        wrong = self.timeline.wrong(moment, held, floors)
        if wrong:
            raise Wrong(f"{what}: {len(wrong)} wrong blocks: {wrong[0]}")

    # Images.

    def moments(self, count):
        """When the power goes: anywhere, right after a flush was answered, soon after a restart,
        late, after the fault, at the end.
        """
        rng = random.Random(f"moments {self.plan.seed}")
        times = [record[3] for record in self.log.records()]
        answered = [flush[1] for flush in self.timeline.flushes] or times
        soon = [
            moment
            for moment in times
            if any(0 < moment - restart < SOON_NS for restart in self.restarts)
        ]
        if self.faulted_at is not None:
            after = [moment for moment in times if moment >= self.faulted_at] or times
            kinds = [times[-1:], after, times[-1:], answered, after, times[-1:], soon or times]
        elif soon:
            kinds = [soon, times[len(times) // 2 :], soon, answered]
        else:
            kinds = [times, answered, times[len(times) // 2 :]]
        return [rng.choice(kinds[number % len(kinds)]) for number in range(count)]

    def image(self, number, moment):
        """Builds one image and opens it."""
        home, seed = self.dir / "image", f"{self.plan.seed} {number}"
        _, pending = images.build(
            self.log, [self.dir / "before" / name for name in self.names], moment, seed, home
        )
        self.pending += pending
        floors = self.timeline.floors(moment)
        self.check(home, "check of the image")
        alone = self.plan.mode and self.dir / "alone"
        if alone:
            for name in self.names[: self.plan.devices]:
                images.copy_sparse(home / name, alone / name)
        if self.plan.fault == "unreadable":
            self.open_unreadable(home, seed, moment, floors)
        server = self.server(home)
        self.start(server, "the image")
        held = self.read(server)
        if None in held:
            raise Wrong(
                f"{held.count(None)} blocks of the image cannot be read, "
                f"the first is {held.index(None)}"
            )
        self.compare("the image", moment, held, floors)
        server.stop()
        if number % 4 == 0:
            self.check(home, "check after the image was served")
        if alone:
            self.open_alone(alone, moment, floors)
        self.opened += 1

    def check(self, home, what, cached=None):
        cached = self.plan.mode is not None if cached is None else cached
        words = [
            word for name in self.names[: self.plan.devices] for word in ("--device", home / name)
        ]
        words += ["--cache", home / "cache.img"] if cached else []
        done = self.case.run(self.case.bin, "check", "--data", *words, ok=range(-64, 256))
        # A file of a mirror that was dropped is not checked; all else is.
        dropped = (
            done.returncode == 5
            and self.plan.devices > 1
            and "only what the other devices hold" in done.stdout
            and "--cache" not in done.stdout
        )
        if done.returncode == 0 or dropped:
            return
        text = done.stdout + done.stderr
        raise Wrong(f"{what}: status {done.returncode}: {text[-1500:]}")

    @staticmethod
    def start(server, what, *more):
        try:
            server.start(*more)
        except AssertionError as error:
            raise Wrong(f"{what} cannot be opened: {error}: {server.log_text()[-1500:]}") from None

    def open_unreadable(self, home, seed, moment, floors):
        """Serves while a sector cannot be read: once, or for good. Never anything older than
        flushed; refused, if at all, in words.
        """
        rng = random.Random(f"unreadable {seed}")
        writes = [
            (device, offset, length)
            for kind, device, _, _, offset, length, *_ in self.log.records(moment)
            if kind == recording.WRITE_BEGIN
        ]
        # Before the first write there are the superblocks.
        writes = writes or [(device, 0, 256 * KIB) for device in range(self.plan.files)]
        ranges = []
        log = recording.Recording(
            self.dir / f"faults{self.opened}", self.library, [home / name for name in self.names]
        )
        try:
            log.set(self.plan.seed, recording=False)
            size = rng.choice([512, 4096, 4096])
            times = rng.choice([-1, -1, 1, 2])
            for number in range(rng.choice([1, 1, 3])):
                device, offset, length = rng.choice(writes[-200:] if rng.random() < 0.5 else writes)
                at = offset + rng.randrange(length) // size * size
                log.bad_sectors(number, device, at, size, times)
                ranges.append(f"{self.names[device]} {at}+{size}")
            which = (
                f"{', '.join(ranges)} unreadable {f'{times} times' if times > 0 else 'for good'}"
            )
            print(which, flush=True)
            server = self.server(home, environment=log.environment())
            server.spawn()
            deadline = time.monotonic() + 30
            while not server.answers() and server.alive():
                if time.monotonic() > deadline:
                    raise Wrong(f"with {which} the server neither serves nor refuses")
                time.sleep(0.01)
            if server.alive():
                held = self.read(server)
                self.compare(f"with {which} ({log.failed()[2]} reads failed)", moment, held, floors)
                server.kill()
            elif server.process.returncode not in range(1, 100):
                status = server.process.returncode
                raise Wrong(
                    f"with {which} the server ended with {status}: {server.log_text()[-1500:]}"
                )
        finally:
            log.close()
            log.path.unlink()

    def open_alone(self, home, moment, floors):
        """The cache is lost: the pool alone is what the volume was at one moment, or with write-
        through all that was flushed.
        """
        for name in ("nbd.sock", "control.sock"):
            (home / name).unlink(missing_ok=True)
        server = self.server(home, "--cache", home / "cache.img", "--forget-cache", cached=False)
        self.start(server, "the pool alone")
        held = self.read(server)
        if None in held:
            raise Wrong(
                f"{held.count(None)} blocks of the pool alone cannot be read, "
                f"the first is {held.index(None)}"
            )
        if self.plan.mode == "writeback":
            wrong = self.timeline.past_state(moment, held)
            if wrong:
                raise Wrong(f"the pool alone is {wrong}")
        else:
            self.compare("the pool alone", moment, held, floors)
        server.stop()
        self.check(home, "check of the pool alone", cached=False)

    # Failures.

    def keep(self, number, moment, text):
        """Leaves everything where it can be looked at, and says how it is opened again."""
        into = self.kept / f"seed{self.plan.seed}-image{number}"
        shutil.rmtree(into, ignore_errors=True)
        into.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-r", "--sparse=always", self.dir, into], check=True)
        for number_, server in enumerate(self.case.servers):
            if server.log.exists():
                shutil.copy(server.log, into / f"server{number_}.log")
        with open(into / "scenario.pickle", "wb") as file:
            pickle.dump(
                {
                    "plan": self.plan,
                    "timeline": plain(self.timeline),
                    "number": number,
                    "moment": moment,
                },
                file,
            )
        (into / "failure.txt").write_text(
            f"{self.plan}\nimage {number}, power cut at {moment}\n{text}\n"
        )
        return into

    @classmethod
    def reopen(cls, case, kept, library, into):
        """A scenario that was kept, to open its images again."""
        with open(pathlib.Path(kept) / "scenario.pickle", "rb") as file:
            saved = pickle.load(file)
        self = cls(case, saved["plan"], library, into)
        subprocess.run(
            ["cp", "-r", "--sparse=always", f"{kept}/before", f"{kept}/log", str(self.dir)],
            check=True,
        )
        vars(self.timeline).update(saved["timeline"])
        self.log = recording.Recording(
            self.dir / "log", library, [self.dir / "live" / name for name in self.names]
        )
        case.later(self.log.close)
        return self, saved["number"], saved["moment"]


def plain(timeline):
    return {name: value for name, value in vars(timeline).items() if name != "lock"}
