"""The part `overwrite` of bench/cache.py: 4 KiB random writes, again and again, over a part of the
cache before a slow pool.

What is written has room in the cache many times over, so the pool should not decide how fast that
goes. The server writes everything back before each part.
"""

import cached
import fio

SHARES = (0.05, 0.12, 0.16, 0.25, 0.5)
DEPTH = 32


def measure(options, work, seconds):
    """A row for each part of the cache."""
    size = options.steady_cache
    server = cached.start(
        "forebay", work, options, cache_gib=size, volume_gib=size * 4, set_gib=size
    )
    try:
        return [
            write_again(server, share, int(share * server.cache_bytes), seconds) for share in SHARES
        ]
    finally:
        server.stop()


def write_again(server, share, size, seconds):
    server.clean()
    words, _ = server.fio_target()
    before = server.cache_status()
    side = fio.call([
        "fio", "--name=overwrite", *words, "--rw=randwrite", "--bs=4k", f"--iodepth={DEPTH}",
        f"--size={size}", "--norandommap", "--randrepeat=0", "--time_based",
        f"--runtime={seconds}", "--output-format=json", "--percentile_list=50:99:99.9",
    ])["write"]
    after = server.cache_status()
    percentile = side["clat_ns"]["percentile"]
    return {
        "share": share,
        "seconds": seconds,
        "depth": DEPTH,
        "iops": side["iops"],
        "ms": [percentile[name] / 1e6 for name in ("50.000000", "99.000000", "99.900000")]
        + [side["clat_ns"]["max"] / 1e6],
        "carried_mb_per_s": (
            after["writeback"]["carried_bytes"] - before["writeback"]["carried_bytes"]
        )
        / seconds
        / 1e6,
        "compacted_per_s": (
            after["gc"].get("compacted_blocks", 0) - before["gc"].get("compacted_blocks", 0)
        )
        / seconds,
    }


def markdown(rows):
    if not rows:
        return []
    lines = ["## Random writes over a part of the cache", ""]
    lines += [
        "| of the cache | cache | writes a second | P50, P99, P99.9, longest, ms | "
        "carried to the pool, MB/s | blocks compacted a second |"
    ]
    lines += ["| ---: | --- | ---: | --- | ---: | ---: |"]
    for row in rows:
        took = ", ".join(f"{ms:.2f}" for ms in row["ms"])
        lines.append(
            f"| {row['share']:.0%} | {row['backing']} | {row['iops']:,.0f} | {took} | "
            f"{row['carried_mb_per_s']:.0f} | {row['compacted_per_s']:,.0f} |"
        )
    return [*lines, ""]
