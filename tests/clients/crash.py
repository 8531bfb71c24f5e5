"""Power cuts of the real binary: its devices are recorded, and what a power cut may leave of them
is opened (docs/testing.md).

`make crash N=2000` does the same for thousands. Here each test takes a seed that is always the
same and one that is new.
"""

import time

from harness.case import limit, once
from harness.crash import plan, recording
from harness.crash.run import run

IMAGES = 5


def crash(t, fault, seeds, **fixed):
    library = recording.shim(t.downloads)
    for seed in (*seeds, time.time_ns() // 1000 % 10**9):
        outcome = run(t, plan.plan(seed, fault=fault, **fixed), IMAGES, t.dir / "failures", library)
        for number, text, kept in outcome.failures:
            print(
                f"image {number}: {text}\nkept in {kept}; open it again: tests/crash --again {kept}"
            )
        assert not outcome.failures, (
            f"seed {seed}: {len(outcome.failures)} of {outcome.images} images failed"
        )
        assert outcome.images == IMAGES
        print(
            f"seed {seed}: {outcome.images} images, {outcome.pending} writes not durable, "
            f"{outcome.seconds:.1f} s"
        )


@once
@limit(180)
def test_power_cuts(t):
    """No device fails; half of the recordings have a kill -9 and a restart before."""
    crash(t, "none", (1, 2))


@once
@limit(180)
def test_failed_flushes_of_the_pool(t):
    """Of both files of two, or of one; what a failed flush covered is lost in part."""
    crash(t, "pool flush of all", (3,), mode=None, devices=2)
    crash(t, "pool flush", (4,))


@once
@limit(180)
def test_failed_flush_of_the_cache(t):
    crash(t, "cache flush", (5, 6), mode="writeback")


@once
@limit(180)
def test_failed_writes(t):
    """Once; what is reported as failed was done, or was not."""
    crash(t, "pool write", (7,))
    crash(t, "cache write", (8,), mode="writeback")


@once
@limit(180)
def test_unreadable_sectors_at_recovery(t):
    crash(t, "unreadable", (9, 10))
