"""Exit statuses are what docs/operations.md says; what the command tells of itself: version, manual
pages, completions."""

import json
import os

from harness.case import once
from harness.data import GIB, MIB, noise


def flip(path, where):
    """Changes a byte of a file."""
    with open(path, "r+b") as file:
        file.seek(where)
        old = file.read(1)
        file.seek(where)
        file.write(bytes([old[0] ^ 1]))


def find(path, wanted):
    """Where a block of data stands in a device."""
    with open(path, "rb") as file:
        descriptor, size, at = file.fileno(), os.path.getsize(path), 0
        while at < size:
            try:
                at = os.lseek(descriptor, at, os.SEEK_DATA) // 4096 * 4096
            except OSError:
                break
            if os.pread(descriptor, 4096, at) == wanted:
                return at
            at += 4096
    raise AssertionError(f"the block is not in {path}")


@once
def test_each_status(t):
    """Done, failed, misused, lost, damaged, checked in part."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    at = ("--socket", server.control)
    t.run(t.bin, "volume", "list", *at, ok=(0,))
    t.run(t.bin, "volume", "delete", "none", "--yes", *at, ok=(1,))
    t.run(t.bin, "status", "--socket", t.dir / "none.sock", ok=(1,))
    t.run(t.bin, "volume", "list", "--colour", *at, ok=(2,))
    t.run(t.bin, "serve", "--config", t.dir / "none.toml", ok=(2,))
    # A typo of the log's level would silence it.
    for words in (("--log-level", "wran"), ("--log-level", "cahce=debug")):
        said = t.run(t.bin, "up", t.dir / "typo", *words, ok=(2,)).stderr
        assert "error, warn" in said or "export, forebay" in said, said
    wrong = {**os.environ, "FOREBAY_LOG": "inof"}
    assert "FOREBAY_LOG" in t.run(t.bin, "check", t.dir, ok=(2,), env=wrong).stderr
    # What the server refuses because it makes no sense.
    for words in (
        ("set", "max_lag", "10"),
        ("set", "lag", "1s"),
        ("set", "lag"),
        ("cache", "attach", t.dir / "new.img"),
        ("explain", "--since", "2h"),
    ):
        t.run(t.bin, *words, *at, ok=(2,))
    t.run(t.bin, "set", "pool.cached_nodes", "4096", *at, ok=(1,))
    small = t.run(t.bin, "up", t.dir / "small", "--size", "10M", ok=(2,)).stderr
    assert "too small" in small and not (t.dir / "small").exists(), small
    file = t.dir / "file"
    file.write_text("")
    assert "is no directory" in t.run(t.bin, "up", file, ok=(2,)).stderr
    data = noise("status", MIB)
    handle = server.connect()
    handle.pwrite(data, 0)
    handle.flush()
    handle.shutdown()
    t.run(t.bin, "scrub", "start", "--wait", *at, ok=(0,))
    server.stop()
    t.run(t.bin, "check", "--data", server.socket.parent, ok=(0,))
    t.run(t.bin, "check", t.dir / "nowhere", ok=(1,))
    for words, said in (
        (("bitmap", "99"), "there is no block group 99"),
        (("checksums", "99"), "there is no block group 99"),
        (("bitmap",), "GROUP is missing"),
        (("node", "x"), "is not a number"),
        (("what",), "cache superblock"),
    ):
        text = t.run(t.bin, "dump", *words, "--dir", server.socket.parent, ok=(2,)).stderr
        assert said in text and (said == "cache superblock" or "cache" not in text), text
    away = server.devices[1].rename(t.dir / "away")
    assert (
        "NOT ALL WAS CHECKED"
        in t.run(t.bin, "check", "--data", server.socket.parent, ok=(5,)).stdout
    )
    away.rename(server.devices[1])
    block = data[4096:8192]
    flip(server.devices[0], find(server.devices[0], block))
    damaged = t.run(t.bin, "check", "--data", server.socket.parent, ok=(4,)).stdout
    assert "nothing is lost" in damaged, damaged
    flip(server.devices[1], find(server.devices[1], block) + 9)
    assert "NOT CLEAN" in t.run(t.bin, "check", "--data", server.socket.parent, ok=(3,)).stdout
    server.start()
    t.run(t.bin, "scrub", "start", "--wait", *at, ok=(3,))
    server.stop()


@once
def test_a_group_that_is_not_there(t):
    """It is a misuse, told by its key before anything is made."""
    devices = t.devices(GIB)
    t.forebay("create", "--device", *devices, "--copies", "1")
    config = t.dir / "forebay.toml"
    for section in ("nbd", "control", "http"):
        config.write_text(
            f'devices = ["{devices[0]}"]\nhttp.listen = "unix:h.sock"\n'
            f'nbd.socket = "run/n.sock"\n{section}.socket_group = "nosuch"\n'
        )
        said = t.run(t.bin, "serve", "--config", config, ok=(2,)).stderr
        assert f'{section}.socket_group: there is no group "nosuch"' in said, said
        assert "getent group" in said, said
    new = t.dir / "new"
    t.run(t.bin, "up", new, "--nbd-socket-group", "nosuch", ok=(2,))
    assert not new.exists() and not (t.dir / "run").exists()


@once
def test_what_it_tells_of_itself(t):
    """The version for people and programs; a page for each command, without faults; completions for
    each shell."""
    told = json.loads(t.forebay("version", "--json").stdout)
    assert (
        t.forebay("--version").stdout.split()[1]
        == told["version"]
        == t.forebay("version").stdout.split()[1]
    )
    assert told["formats"]["pool"]["reads"] == [1] and "io_uring" in told["features"], told
    pages = t.dir / "man"
    t.forebay("man", pages)
    names = sorted(path.name for path in pages.iterdir())
    expected = {"forebay.1", "forebay.toml.5", "forebay-problems.7", "forebay-check.1"}
    assert expected | {"forebay-volume-create.1"} <= set(names), names
    assert "forebay-man.1" not in names
    devices = t.devices(GIB)
    for shell in ("bash", "zsh", "fish"):
        script = t.dir / f"completions.{shell}"
        script.write_text(t.forebay("completions", shell).stdout)
        assert "FOREBAY_COMPLETE" in script.read_text()
    t.run("bash", "-c", f"set -e; source {t.dir}/completions.bash; complete -p forebay")
    t.run(t.bin, "man", devices[0] / "below", ok=(1,))
    try:
        t.need("man")
    except Exception:
        return
    for name in names:
        done = t.run(
            "man",
            "--warnings",
            "-l",
            pages / name,
            env={**os.environ, "MANWIDTH": "90", "MANROFFSEQ": ""},
        )
        assert "EXIT STATUS" in done.stdout or name.endswith((".5", ".7")), name
        assert not done.stderr.strip(), done.stderr


@once
def test_programs_read_what_was_done_and_what_failed(t):
    """With --json each command that changes something prints an object, and so does each error."""
    server = t.up("--cache-size", "64M", size="1G", volume_size="64M")
    at = ("--json", "--socket", server.control)
    done = lambda *words: json.loads(t.forebay(*words, *at).stdout)
    assert "made" in done("volume", "create", "a", "--size", "8M")["done"]
    assert "called b" in done("volume", "rename", "a", "b")["done"]
    assert done("volume", "limit", "b", "--iops", "500")["iops"] == 500
    assert done("device", "rebalance")["state"] == "none"
    assert "in the pool" in done("cache", "flush")["done"]
    assert done("scrub", "start")["state"] in ("running", "finished")
    assert "deleted" in done("volume", "delete", "b", "--yes")["done"]
    failed = lambda status, *words: json.loads(t.run(t.bin, *words, ok=(status,)).stderr)
    told = failed(1, "volume", "delete", "b", "--yes", *at)
    assert told["exit_status"] == 1 and "no volume" in told["error"], told
    told = failed(2, "volume", "fly", "--json")
    assert told["exit_status"] == 2 and "unrecognized" in told["error"], told
    assert "prints no JSON" in failed(2, "top", "--json")["error"]


@once
def test_a_shell_completes_names(t):
    """Volumes and devices of the server, settings and problems; nothing where no server answers."""
    server = t.up("--cache-size", "0", size="1G", volume_size="64M")
    script = t.dir / "forebay.bash"
    script.write_text(t.forebay("completions", "bash").stdout)

    def offered(*words, socket=server.control):
        line = (
            f"source {script}; COMP_WORDS=(forebay {' '.join(words)} ''); "
            "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); "
            '_clap_complete_forebay forebay "" x; printf "%s\n" "${COMPREPLY[@]}"'
        )
        path = f"{t.bin.parent}:{os.environ['PATH']}"
        env = {**os.environ, "PATH": path, "FOREBAY_SOCKET": str(socket)}
        return t.run("bash", "-c", line, env=env).stdout.split()

    assert "vol0" in offered("volume", "delete")
    assert any(name.endswith("pool0.img") for name in offered("device", "offline"))
    assert "cache.max_lag" in offered("set") and "pool-full" in offered("help")
    assert "vol0" not in offered("volume", "delete", socket=t.dir / "none")


@once
def test_help_on_a_problem(t):
    """The name that the status gives a problem is enough to read what to do."""
    said = t.forebay("help", "pool-full").stdout
    assert said.startswith("pool-full") and "To do." in said and "fstrim" in said, said
    assert "scrub-paused" in t.forebay("help", "problems").stdout
    assert "--size" in t.forebay("help", "volume", "create").stdout
    t.refused(t.bin, "help", "nothing-of-that", saying=("forebay help problems",))
