"""Copies of a pool and of its cache, and halves that were served alone: never one history for
another, and never old data without a word."""

import subprocess

from clients.cache import image_of
from clients.devices import fill, pool_state, verify
from clients.set import wait_for
from harness.case import cache_only, limit, pool_only

APART = "each written without the other"


def copy(source, target):
    subprocess.run(["cp", "-a", "--sparse=always", source, target], check=True)


def serve_alone(server, other, **work):
    """Serves with the other device out of the way; writes, if there is anything to write."""
    away = other.with_name("away.img")
    other.rename(away)
    server.start()
    if work:
        fill(server, blocks=64, **work)
    server.stop()
    away.rename(other)


def whole(server):
    wait_for(lambda: pool_state(server)[1] == {"pool0.img": "online", "pool1.img": "online"}, 30)


@pool_only
@limit(120)
def test_half_of_a_copy(t):
    """A pool and a copy of it do the same amount of work. Half of one and half of the other are
    refused, by name, and each of the two is whole as before."""
    server = t.up(volume_size="64M", size="1G")
    fill(server, blocks=64)
    server.stop()
    home = server.socket.parent
    copy(home, t.dir / "copy")
    ours = theirs = None
    server.start()
    ours = fill(server, blocks=64, seed="ours")
    server.stop()
    other = t.up(volume_size="64M", size="1G", directory="copy")
    theirs = fill(other, blocks=64, seed="theirs")
    other.stop()
    first, second = server.devices
    for one, two in ((first, other.devices[1]), (other.devices[0], second)):
        command = (
            t.bin, "serve", "--device", one, "--device", two, "--nbd-socket", t.dir / "x.sock",
            "--socket", t.dir / "x.control",
        )
        text = t.refused(*command, saying=(APART,), timeout=30)
        assert str(one) in text or str(two) in text, text
        t.refused(t.bin, "check", "--device", one, "--device", two, saying=(APART,))
    server.start()
    verify(server, ours)
    server.stop()
    other.start()
    verify(other, theirs)


@cache_only
@limit(120)
def test_the_cache_of_a_copy(t):
    """The pool of one and the cache of the other are refused; each has what it had."""
    server = t.up(volume_size="64M", size="1G")
    fill(server, blocks=64)
    server.stop()
    home = server.socket.parent
    copy(home, t.dir / "copy")
    server.start()
    ours = fill(server, blocks=64, seed="ours")
    server.kill()
    other = t.up(volume_size="64M", size="1G", directory="copy")
    theirs = fill(other, blocks=64, seed="theirs")
    other.kill()
    mine, its = home / "cache.img", t.dir / "copy" / "cache.img"
    mine.rename(home / "kept.img")
    copy(its, mine)
    t.refused(*server.command, saying=(APART,))
    t.refused(t.bin, "check", home, saying=(APART,))
    (home / "kept.img").rename(mine)
    server.start()
    verify(server, ours)
    server.stop()
    other.start()
    verify(other, theirs)


@cache_only
@limit(90)
def test_an_older_copy_of_the_cache(t):
    """After a clean stop too, whether it was made in the same life of the server or before."""
    server = t.up(volume_size="64M", size="1G")
    fill(server, blocks=64)
    server.stop()
    image = image_of(server)
    copy(image, t.dir / "old.img")
    server.start()
    written = fill(server, blocks=64, seed="newer")
    server.stop()
    image.rename(t.dir / "newest.img")
    copy(t.dir / "old.img", image)
    t.refused(*server.command, saying=(APART,))
    (t.dir / "newest.img").rename(image)
    server.start()
    verify(server, written)


@pool_only
@limit(90)
def test_halves_that_were_only_started(t):
    """Each was started alone, once, and nothing was written: they join, and nothing is asked."""
    server = t.up(volume_size="64M", size="1G")
    written = fill(server, blocks=256)
    server.stop()
    first, second = server.devices
    serve_alone(server, first)
    serve_alone(server, second)
    server.start()
    verify(server, written)
    whole(server)
    server.stop()
    for other in (first, second):
        serve_alone(server, other)
    server.start()
    whole(server)
    verify(server, written)


@pool_only
@limit(90)
def test_an_older_copy_of_a_half(t):
    """It is served alone, and written. What the other half has had since is not given up."""
    server = t.up(volume_size="64M", size="1G")
    fill(server, blocks=64)
    server.stop()
    first, second = server.devices
    copy(first, t.dir / "old.img")
    server.start()
    written = fill(server, blocks=64, seed="newer")
    server.stop()
    first.rename(t.dir / "newest.img")
    copy(t.dir / "old.img", first)
    serve_alone(server, second, seed="elsewhere")
    t.refused(*server.command, saying=(APART,))
    (t.dir / "newest.img").replace(first)
    server.start()
    verify(server, written)


@cache_only
@limit(90)
def test_a_copy_of_up_whose_cache_is_elsewhere(t):
    """The copy does not take the original's cache: it says whose that is, and changes nothing."""
    server = t.up("--cache-size", "64M", size="1G", volume_size="64M")
    server.command = server.command[:-2]
    fast = t.dir / "fast.img"
    server.cache("detach")
    server.cache("attach", fast, "--size", "64M")
    written = fill(server, blocks=64)
    server.stop()
    home, moved = server.socket.parent, t.dir / "moved"
    copy(home, t.dir / "copy")
    copy(fast, t.dir / "fast_copy.img")
    before = fast.read_bytes()
    text = t.refused(t.bin, "up", t.dir / "copy", saying=("is a copy of",))
    assert str(fast) in text and str(home) in text, text
    assert fast.read_bytes() == before
    server.start()
    verify(server, written)
    server.stop()
    # Its own cache it has when it was copied too, and is named.
    other = t.up(
        "--cache-size", "64M", "--cache", t.dir / "fast_copy.img", size="1G", volume_size="64M",
        directory="copy",
    )
    verify(other, written)
    other.stop()
    other.command = other.command[:3]
    other.start()
    verify(other, written)
    other.stop()
    # One that is moved is no copy.
    home.rename(moved)
    again = t.up("--cache-size", "64M", size="1G", volume_size="64M", directory="moved")
    verify(again, written)
    assert again.status()["cache"]["path"] == str(fast)


@pool_only
@limit(90)
def test_a_device_that_was_taken_out_of_use(t):
    """Alone it is not served, and says what it is; taken back, it is as it was when it left. Then
    the other one went apart from it."""
    server = t.up(volume_size="64M", size="1G")
    old = fill(server, blocks=64)
    first, second = server.devices
    t.forebay("device", "offline", second, "--socket", server.control)
    fill(server, blocks=64, seed="newer")
    server.stop()
    first.rename(t.dir / "away.img")
    text = t.refused(*server.command, saying=("out of use",))
    assert "pool1.img" in text and "--take-back" in text, text
    server.start("--take-back")
    verify(server, old)
    fill(server, blocks=64, seed="elsewhere")
    server.stop()
    (t.dir / "away.img").rename(first)
    t.refused(*server.command, saying=(APART,))
    second.unlink()
    server.start()
    assert pool_state(server)[0] == "degraded"
