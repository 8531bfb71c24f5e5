"""The part `trace` of bench/cache.py: block traces and synthetic loads, replayed on fresh servers.

Each run has a server of its own (bench/up.py), whose cache is on the disk. A trace is replayed in
an open loop for each size of the cache, from odd sectors and from even ones, and in a closed loop
several times on the smallest cache. A synthetic load is replayed in an open loop at its own speed.

`ailing` has caches of its own sizes, and a pool that is ill for a while.

Beside each run of a trace in an open loop, the same is replayed on qemu-nbd with a file on the disk
of the cache and nothing slow behind it: what the client, the socket and that disk cost by
themselves.
"""

import dataclasses
import sys
import time

import ailing
import blocktrace
import burst
import replay
import servers
import steady
import svg
import synthetic
import up

EVERY_S = 0.25
# A trace may be of a partition that began at an odd sector: one of these aligns it, one does not.
SHIFTS = (1, 0)
BURST, AILING = "burst60", "ailing"
SYNTHETIC = (*synthetic.KINDS, BURST, AILING)
AILING_CACHES = (64 << 20, 512 << 20, 10 << 30)


@dataclasses.dataclass
class Load:
    """A load to replay. `real`: it was recorded, and so its results are measured against bars."""

    name: str
    requests: list
    speedup: float
    shifts: tuple
    real: bool
    filled: int = 0


def measure(options, work, results):
    """Adds a row to `results` for every run, as it ends."""
    sizes = sorted(options.trace_cache)
    for load in loads(options):
        for cache_bytes in sizes:
            for shift in load.shifts:
                results.append(play(options, work, load, cache_bytes, shift, load.speedup))
                if load.real:
                    results.append(play_on_peer(options, work, load, shift))
        if load.real:
            for number in range(options.trace_rounds):
                row = play(options, work, load, sizes[0], SHIFTS[0], None, number + 1)
                results.append(row)
    if BURST in options.synthetic:
        results.append(write_at_once(options, work, sizes[-1]))
    if AILING in options.synthetic:
        if why := ailing.why_not():
            say(f"{AILING}: left out: {why}")
            return
        for cache_bytes in AILING_CACHES:
            results.append(write_to_the_ill(options, work, cache_bytes))


def loads(options):
    for path in options.trace:
        speedup = options.trace_speedup
        yield Load(path.stem, blocktrace.read(path), speedup, SHIFTS, real=True)
    for name in options.synthetic:
        if name in synthetic.KINDS:
            make, seconds = synthetic.KINDS[name], options.synthetic_seconds
            requests = make(seconds=seconds, size=up.VOLUME_SIZE)
            filled = synthetic.FILLED if name == "mixed" else 0
            yield Load(name, requests, 1, (0,), real=False, filled=filled)


def play(options, work, load, cache_bytes, shift, speedup, number=0):
    """One run; `speedup` None: in a closed loop."""
    loop = "open" if speedup else "closed"
    name = f"{load.name}-{size_text(cache_bytes)}-shift{shift}-{loop}"
    name += f"-{number}" if number else ""
    server = up.Up(options, work, cache_bytes, filled=load.filled)
    try:
        with steady.Watch(server, EVERY_S) as watch:
            result = replay.play(server.uri, load.requests, speedup=speedup, shift=shift)
        status = server.cache_status()
    finally:
        server.discard()
    about = f"{load.name}, cache of {size_text(cache_bytes)}, shift {shift}, "
    about += f"{speedup:g} times as fast" if speedup else f"closed loop, depth {result['depth']}"
    series = result["by_second"]
    curves = series["writes"], series["longest_write_ms"]
    path = picture(options, name, about, *curves, watch.samples)
    writes = result["kinds"]["writes"]
    say(
        f"{name}: {result['seconds']:.1f} s, longest write {writes['max_ms']:,.1f} ms, "
        f"P99.9 {writes['p999_ms']:,.1f} ms"
    )
    return result | {
        "load": load.name, "real": load.real, "loop": loop, "cache_bytes": cache_bytes,
        "cache": size_text(cache_bytes), "number": number, "svg": str(path),
        "samples": watch.samples, "status": status,
    }


def play_on_peer(options, work, load, shift):
    """One run in an open loop on qemu-nbd, over a new sparse file on the disk itself."""
    server = servers.QemuNbd(work, up.VOLUME_SIZE / servers.GIB, options, sparse=True)
    try:
        uri = f"nbd+unix:///?socket={server.socket}"
        result = replay.play(uri, load.requests, speedup=load.speedup, shift=shift)
    finally:
        server.discard()
    writes = result["kinds"]["writes"]
    say(
        f"{load.name} on {server.name}, shift {shift}: longest write {writes['max_ms']:,.1f} ms, "
        f"P99.9 {writes['p999_ms']:,.1f} ms"
    )
    return result | {"load": load.name, "real": False, "loop": "open", "cache": server.name}


def write_at_once(options, work, cache_bytes):
    name = f"{BURST}-{size_text(cache_bytes)}"
    result = burst.measure(options, work, cache_bytes, EVERY_S)
    about = f"{BURST}: random writes of 4 KiB, depth {burst.DEPTH}, until 130 % of a cache of "
    about += size_text(cache_bytes)
    samples = result["samples"]
    path = picture(options, name, about, result["iops"], result["longest_ms"], samples)
    say(
        f"{name}: {result['first_rate']:,.0f} writes a second in the first 60 %, "
        f"{result['reference_rate']:,.0f} without write-back"
    )
    return result | {
        "load": BURST, "real": False, "loop": BURST, "cache": size_text(cache_bytes),
        "svg": str(path),
    }


def write_to_the_ill(options, work, cache_bytes):
    name = f"{AILING}-{size_text(cache_bytes)}"
    result = ailing.measure(options, work, cache_bytes, EVERY_S)
    about = f"{AILING}: two streams of 60 KiB and random 4 KiB writes, cache of "
    about += f"{size_text(cache_bytes)}; the pool is ten times slower from 20 s on, stopped from 85"
    series = result["by_second"]
    curves = series["writes"], series["longest_write_ms"]
    path = picture(options, name, about, *curves, result["samples"])
    for phase in result["phases"]:
        say(f"{name}, {phase['health']}: longest write {phase['max_ms']:,.1f} ms")
    return result | {
        "load": AILING, "real": False, "loop": AILING, "cache": size_text(cache_bytes),
        "svg": str(path),
    }


def picture(options, name, about, writes, longest_ms, samples):
    """Rate, longest write, dirty data and age of the image, each over time; returns its path."""
    seconds = len(writes)
    samples = [sample for sample in samples if sample["at_s"] <= seconds]
    marks = published(samples)
    drawn = svg.Picture(about)
    drawn.panel("writes a second (upright: a pass was published)", writes, "#1f6fb4", marks=marks)
    drawn.panel("longest write of the second, ms", longest_ms, "#c44e20", marks=marks, log=True)
    dirty = [(sample["at_s"], sample["dirty_share"] * 100) for sample in samples]
    drawn.samples("dirty, % of the cache", dirty, seconds, "#8a6d1f", [(100, "all")], marks=marks)
    lag = [(sample["at_s"], sample["lag_seconds"]) for sample in samples]
    drawn.samples("age of the pool's image, s", lag, seconds, "#3a8a4d", marks=marks)
    path = options.trace_svg.with_name(f"{options.trace_svg.stem}-{name}{options.trace_svg.suffix}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(drawn.text())
    return path


def published(samples):
    """When a pass was found to be published since the sample before."""
    pairs = zip(samples, samples[1:])
    return [after["at_s"] for before, after in pairs if after["passes"] > before["passes"]]


def size_bytes(text):
    """Bytes from a size such as 512M or 2G."""
    units = {"K": 10, "M": 20, "G": 30}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "")
    if not number.isdecimal() or int(number) == 0:
        raise ValueError(f"{text!r} is not a size such as 512M or 2G")
    return int(number) << units.get(unit, 0)


def size_text(size):
    for unit, shift in (("G", 30), ("M", 20), ("K", 10)):
        if size % (1 << shift) == 0:
            return f"{size >> shift}{unit}"
    return str(size)


def say(text):
    print(f"{time.strftime('%H:%M:%S')} trace: {text}", file=sys.stderr, flush=True)
