"""What one scenario does, all of it chosen by its seed."""

import dataclasses
import random

# Of the faults, how often each is chosen. `all`: of both files of the pool, or of the one.
FAULTS = {
    "none": 8,
    "pool flush": 3,
    "pool flush of all": 3,
    "cache flush": 4,
    "pool write": 1,
    "cache write": 1,
    "unreadable": 4,
}
# Superblocks and the first pages of tables of a cache of this size stand before this.
TABLES_END = 136 << 10


@dataclasses.dataclass(frozen=True)
class Plan:
    """One recording, and how its images are opened."""

    seed: int
    devices: int
    mode: str | None  # of the volume, with a cache
    fault: str
    # A flush that fails covers a write below this offset: one of the tables; 0: whatever it covers.
    fault_below: int
    fault_after: int  # operations of its kind, once it has been ordered
    kills: int
    seconds: float  # of load, in each life
    delay_us: int  # of a device operation, at most
    revert: bool  # what a failed flush has lost is lost to reads, too
    lost_percent: int
    writers: int
    flushers: int
    fua_percent: int
    flush_pause_s: float
    blocks: int
    settings: tuple  # (section, key, value) of the configuration

    @property
    def files(self):
        return self.devices + (self.mode is not None)

    def faulty(self):
        """The numbers of the devices that fail."""
        if self.fault.startswith("cache"):
            return [self.devices]
        rng = random.Random(f"faulty {self.seed}")
        return (
            list(range(self.devices))
            if self.fault == "pool flush of all"
            else [rng.randrange(self.devices)]
        )

    def __str__(self):
        cache = f"cache {self.mode}" if self.mode else "no cache"
        kills = f", {self.kills} kills" if self.kills else ""
        reverted = ", reverted" if self.revert else ""
        return (
            f"seed {self.seed}: {self.devices} files, {cache}, fault: {self.fault}{reverted}{kills}"
        )


def plan(seed, fault=None, **fixed):
    """The scenario of a seed. What is fixed is not chosen; the rest is chosen as ever."""
    rng = random.Random(f"plan {seed}")
    mode = rng.choice([None, "writeback", "writeback", "writeback", "writethrough"])
    chosen = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
    values = {
        "devices": rng.choice([1, 2, 2]),
        "fault_after": rng.choice([1, 1, 2, 3, 5, 9]),
        "fault_below": rng.choice([0, TABLES_END]),
        "kills": rng.choice([0, 0, 1, 1, 2]),
        "seconds": rng.choice([0.15, 0.3, 0.6]),
        "delay_us": rng.choice([0, 200, 2000, 10000]),
        "revert": rng.random() < 0.4,
        "lost_percent": rng.choice([5, 30, 60, 100]),
        "writers": rng.choice([1, 3, 3, 6]),
        "flushers": rng.choice([1, 2, 4]),
        "fua_percent": rng.choice([0, 5, 30]),
        "flush_pause_s": rng.choice([0.0005, 0.002, 0.01, 0.05, 0.2]),
        "blocks": rng.choice([256, 1024, 4096]),
    } | fixed
    mode = values.pop("mode", mode)
    fault = fault or chosen
    if mode is None and fault.startswith("cache"):
        fault = "pool flush of all"
    if "flush" not in fault:
        values["revert"] = False
    elif "kills" not in fixed:
        # After kill -9 the page cache would still show what a failed flush has lost, and no one
        # could know: the fault is in the last life.
        values["kills"] = min(values["kills"], 1)
    if fault != "cache flush":
        values["fault_below"] = 0
    if values["fault_below"]:
        # Checkpoints are few.
        values["fault_after"] = min(values["fault_after"], 2)
    settings = [("pool", "commit_interval", f'"{rng.choice(["20ms", "200ms", "5s"])}"')]
    if mode:
        settings += [
            ("cache", "max_lag", f'"{rng.choice(["100ms", "300ms", "30s"])}"'),
            ("cache", "journal_interval", f'"{rng.choice(["5ms", "50ms", "1s"])}"'),
            ("cache", "sequential_cutoff", rng.choice(["0", '"128K"', '"4M"'])),
            ("cache", "dirty_nodes", rng.choice(["64", "64", "4096"])),
            ("cache", "writeback_rate_min", f'"{rng.choice(["4M", "64M"])}"'),
        ]
    return Plan(seed=seed, mode=mode, fault=fault, settings=tuple(settings), **values)
