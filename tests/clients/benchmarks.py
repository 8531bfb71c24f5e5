"""The scripts of `make bench-cache` do what they say, each part for a moment: they are run by hand,
seldom, and for an hour."""

import json
import pathlib

from harness.case import limit, once

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
PYTHON = "/usr/bin/python3"


@once
@limit(180)
def test_cache(t):
    """A trace in all loops, a synthetic load, steady writes."""
    trace = t.dir / "small.csv"
    t.run(PYTHON, BENCH / "synthetic.py", "streams", "--seconds", "1", "--out", trace)
    traces = [
        "--trace", trace, "--trace-speedup", "1", "--trace-rounds", "2", "--trace-cache", "32M",
    ]
    loads = [
        "--synthetic", "mixed", "--synthetic-seconds", "1", "--steady", "2", "--steady-cache",
        "0.03125",
    ]
    given = [
        "--bin", t.bin, "--dir", t.dir, "--out", t.dir, "--backing", "disk", "--parts",
        "trace,steady",
    ]
    t.run(PYTHON, BENCH / "cache.py", *given, *traces, *loads)
    found = json.loads((t.dir / "cache.json").read_text())
    loops = sorted(row["loop"] for row in found["traces"])
    assert loops == ["closed", "closed", *["open"] * 5], loops
    assert all(row["requests"] > 500 for row in found["traces"]), found["traces"]
    (steady,) = found["steady"]
    assert sum(steady["iops"]) > 0, steady
