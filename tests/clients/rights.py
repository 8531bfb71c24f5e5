"""What commands say where the user who runs them, or the server, may not do what is asked."""

import json
import os
import shutil

from harness.case import Skip, limit, once
from harness.data import GIB

OTHER = 65534


def as_other(*command):
    """A command as a user who owns nothing."""
    return ("setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", *command)


def place(t):
    """A directory that everybody can reach, and the program in it."""
    if os.geteuid() != 0:
        raise Skip("needs root")
    t.need("setpriv")
    made = t.memory()
    made.chmod(0o755)
    return made, shutil.copy(t.bin, made / "forebay")


@once
def test_a_directory_of_somebody_else(t):
    """`up` and `doctor` name the owner, and advise neither to remove anything nor to mend a
    configuration."""
    made, program = place(t)
    home = made / "data"
    server = t.up(directory=home, size="1G", volume_size="64M")
    server.stop()
    assert (home / "devices.json").exists()
    done = t.run(*as_other(program, "up", home), ok=(1,))
    last = done.stderr.splitlines()[-1]
    print(last)
    assert "Permission denied" in last and "remove" not in last, last
    assert last.endswith(
        f"run it as the server's user: {home} belongs to root, so sudo -u root forebay ..."
    ), last
    done = t.run(*as_other(program, "doctor", home, "--json"), ok=(3,))
    (found,) = [one for one in json.loads(done.stdout) if one["check"] == "directory"]
    assert "belongs to root" in found["found"] and "config" not in found["todo"], found


@once
def test_a_configuration_that_the_server_may_not_write(t):
    """Nothing is changed, and what is said is what root has to do."""
    made, program = place(t)
    data, config = made / "data", made / "forebay.toml"
    data.mkdir()
    device = data / "pool0.img"
    t.forebay("create", "--device", device, "--size", str(GIB), "--copies", "1")
    for path in (data, device):
        os.chown(path, OTHER, OTHER)
    config.write_text(
        f'devices = ["{device}"]\n[nbd]\nsocket = "{data}/nbd.sock"\n'
        f'[control]\nsocket = "{data}/control.sock"\n'
    )
    server = t.serve([], start=False)
    server.command = [str(word) for word in as_other(program, "serve", "--config", config)]
    server.socket, server.control = data / "nbd.sock", data / "control.sock"
    server.start()
    before = config.read_text()
    text = t.refused(
        program, "set", "pool.commit_interval", "2s", "--save", "--socket", server.control,
    )
    print(text)
    for part in ("nothing was changed", "Permission denied", "as root", "systemctl reload forebay"):
        assert part in text, part
    assert config.read_text() == before
    shown = t.forebay("set", "commit_interval", "--json", "--socket", server.control).stdout
    assert json.loads(shown)["from"] == "default", shown


@once
@limit(60)
def test_what_others_made_is_not_trusted(t):
    """A directory, or a token, of another user; a directory that everybody may write to. What a
    server makes is for others to read at most, whatever the umask is."""
    if os.geteuid() != 0:
        raise Skip("only root may give a directory to another user")
    theirs = t.dir / "theirs"
    theirs.mkdir()
    (theirs / "http.token").write_text("0123456789abcdef0123\n")
    os.chown(theirs, 65534, 65534)
    told = t.refused(t.bin, "up", theirs, "--size", "1G", saying=("belongs to another user",))
    assert "chown" in told and not (theirs / "pool0.img").exists(), told
    os.chown(theirs, 0, 0)
    theirs.chmod(0o777)
    t.refused(t.bin, "up", theirs, "--size", "1G", saying=("everybody may make or replace",))
    theirs.chmod(0o755)
    os.chmod(theirs / "http.token", 0o600)
    os.chown(theirs / "http.token", 65534, 65534)
    t.refused(t.bin, "up", theirs, "--size", "1G", saying=("another user, who knows it",))
    before = os.umask(0)
    try:
        server = t.up(size="1G", volume_size="16M")
        (new,) = t.devices(1 << 30)
        t.forebay("device", "add", new, "--socket", server.control)
        server.cache("attach", t.dir / "fast.img", "--size", "64M", ok=(0, 1))
        home = server.control.parent
        for file in home.iterdir():
            assert file.is_socket() or file.stat().st_mode & 0o022 == 0, (file, file.stat())
        server.stop()
    finally:
        os.umask(before)
