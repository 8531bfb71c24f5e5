"""`forebay config`: what a server goes by, where each value comes from, and the example file."""

import json

from harness.case import cache_only, once
from harness.data import GIB

HEAD = """devices = ["device0.img", "device1.img"]
[nbd]
socket = "nbd.sock"
[control]
socket = "control.sock"
[http]
listen = ["127.0.0.1:0"]
hosts = ["box.lan"]
[cache]
path = "fast.img"
max_lag = "8s"
"""


def configured(t, *options):
    """A server with a configuration file, and that file."""
    devices = t.devices(GIB, GIB)
    words = [word for device in devices for word in ("--device", device)]
    t.forebay("create", *words, "--cache", t.dir / "fast.img", "--cache-size", "64M")
    config = t.dir / "forebay.toml"
    config.write_text(HEAD)
    server = t.serve([], "--config", config, start=False)
    server.command = [str(t.bin), "serve", "--config", str(config), *options]
    return server.start(), config


def shown(t, *words, **more):
    """Its entries by their keys: value and where it comes from."""
    told = json.loads(t.forebay("config", "--json", *words, **more).stdout)
    entries = {one["key"]: (one["value"], one["from"]) for one in told["settings"]}
    assert len(entries) == len(told["settings"]), "a key is there twice"
    return entries, told["file"]


@cache_only
def test_every_source(t):
    """Default, file, option and set are told apart; what devices and caches a server has is told as
    it is now."""
    server, config = configured(t, "--commit-interval", "2s", "--io", "posix")
    at = ("--socket", server.control)
    t.forebay("set", "dirty_target", "30", *at)
    entries, file = shown(t, *at)
    devices = [str(t.dir / f"device{number}.img") for number in (0, 1)]
    assert file == str(config)
    for key, wanted in {
        "devices": (devices, "configuration"),
        "nbd.socket": (str(t.dir / "nbd.sock"), "configuration"),
        "nbd.listen": ([], "default"),
        "pool.commit_interval": ("2s", "option"),
        "io.backend": ("posix", "option"),
        "cache.path": (str(t.dir / "fast.img"), "configuration"),
        "cache.max_lag": ("8s", "configuration"),
        "cache.dirty_target": (30, "set"),
        "cache.dirty_limit": (95, "default"),
        "log.level": ("info", "default"),
    }.items():
        assert entries[key] == wanted, (key, entries[key])
    server.cache("detach")
    t.forebay("set", "max_lag", "9s", "--save", *at)
    entries, _ = shown(t, *at)
    assert entries["cache.path"] == (None, "set") and entries["cache.max_lag"] == (
        "9s",
        "configuration",
    ), entries
    # A device that is away is still named; a new one is.
    t.forebay("device", "offline", devices[0], *at)
    assert shown(t, *at)[0]["devices"] == (devices, "configuration")
    t.forebay("device", "online", devices[0], *at)
    new = t.dir / "device2.img"
    with open(new, "wb") as image:
        image.truncate(GIB)
    t.forebay("device", "add", new, *at)
    assert shown(t, *at)[0]["devices"] == ([*devices, str(new)], "set")
    server.stop()


@once
def test_the_output_is_a_file(t):
    """What is shown starts a server that shows the same, now from its file."""
    server, config = configured(t, "--max-lag", "7s", "--nbd-listen", "127.0.0.1:0", "--tls", "off")
    first, _ = shown(t, "--socket", server.control)
    text = t.forebay("config", "--socket", server.control).stdout
    assert str(config) in text.splitlines()[1] and 'max_lag = "7s"' in text, text
    server.stop()
    config.write_text(text)
    server.command = server.command[:4]
    server.start()
    second, _ = shown(t, "--socket", server.control)
    assert {key: value for key, (value, _) in first.items()} == {
        key: value for key, (value, _) in second.items()
    }
    came = {key: source for key, (value, source) in second.items() if value is not None}
    assert set(came.values()) == {"configuration"}, came
    # The same without a server.
    assert shown(t, "--config", config)[0] == second
    server.stop()


@once
def test_without_a_server(t):
    """A file is checked and shown; the example is a file; a missing server is a failure, a bad file
    is a misuse."""
    example = t.forebay("config", "--example").stdout
    config = t.dir / "forebay.toml"
    config.write_text(example)
    entries, _ = shown(t, "--config", config)
    assert len(entries["devices"][0]) == 2 and entries["devices"][1] == "configuration"
    assert {source for key, (_, source) in entries.items() if key != "devices"} == {"default"}
    config.write_text(example + "[cache]\nmax_leg = 1\n")
    t.run(t.bin, "config", "--config", config, ok=(2,))
    t.run(t.bin, "config", "--socket", t.dir / "none.sock", ok=(1,))
    # Without an option the environment says where the server is.
    done = t.run("env", f"FOREBAY_SOCKET={t.dir}/elsewhere.sock", t.bin, "status", ok=(1,))
    assert "elsewhere.sock" in done.stderr, done.stderr
    # An empty one says nothing.
    both = ("./forebay-data/control.sock, nor at /run/forebay/control.sock", "/run/forebay/control")
    done = t.run("env", "FOREBAY_SOCKET=", t.bin, "status", ok=(1,), cwd=t.dir)
    assert any(one in done.stderr for one in both) and "--socket" in done.stderr, done.stderr


@once
def test_the_server_of_a_package_is_found(t):
    """Commands look at /run/forebay where nothing is in the directory of `forebay up`; of two
    servers they take the one of this directory."""
    root = t.as_root()
    server = t.up(size="1G", volume_size="64M")
    run = (
        'mount -t tmpfs none /run && mkdir /run/forebay && '
        'ln -s "$1" /run/forebay/control.sock && exec env -u FOREBAY_SOCKET "$0" volume list'
    )
    command = (*root, "unshare", "-m", "sh", "-c", run, t.bin, server.control)
    assert "vol0" in t.run(*command, cwd=t.dir).stdout
    (t.dir / "forebay-data").mkdir()
    (t.dir / "forebay-data" / "control.sock").symlink_to("nowhere")
    done = t.run(*command, cwd=t.dir, ok=(1,))
    assert "no server answers at ./forebay-data/control.sock;" in done.stderr, done.stderr
