"""What README.md and docs/operations.md have people type, typed in order in a fresh directory.

Disks are files here, and ports others. What needs a machine of its own is left out by name, so a
new line in a document is typed, or somebody has to say why not.
"""

import os
import pathlib
import re
import subprocess
import time

from clients.http import free_port

from harness.case import limit, once
from harness.data import GIB

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Files in the place of what the documents name.
DISKS = {"/dev/sdb": 2, "/dev/sdc": 2, "/dev/sdd": 2, "/dev/nvme0n1p3": 1}
# What begins a line that is typed. Other blocks are pictures of output.
COMMANDS = {
    "forebay", "sudo", "make", "mkdir", "qemu-img", "qemu-system-x86_64", "nbdcopy", "nbdinfo",
    "openssl", "install", "printf", "chmod", "systemctl", "useradd",
}
# What is not typed here: how it begins, and why.
LEFT_OUT = {
    "make run": "a build; `forebay up` is what it runs then",
    "make test": "this is part of it",
    "mkdir -p /tmp/disk && nbdfuse": "clients/filesystems.py",
    "mkfs.ext4 /tmp/disk": "clients/filesystems.py",
    "sudo nbd-client": "a kernel with nbd: clients/guest.py",
    "qemu-system-x86_64": "clients/guest.py",
    "forebay volume resize vm1": "a volume of another server: clients/space.py",
    "useradd": "root, and a system: tests/package",
    "install -m 644 contrib/systemd": "root, and a system: tests/package",
    "systemctl": "a system: tests/package",
    "sudo forebay mount": "root: clients/attach.py",
    "sudo forebay unmount": "root: clients/attach.py",
    "forebay attach vol0": "FUSE or a kernel with nbd: clients/attach.py",
    "forebay attached": "clients/attach.py",
    "forebay detach vol0": "clients/attach.py",
}


def blocks(name):
    """The code blocks of a document: each a list of commands, without comments."""
    found, block, fenced = [], [], None
    for line in [*(ROOT / name).read_text().splitlines(), ""]:
        if line.startswith("```"):
            fenced = None if fenced is not None else line[3:]
            line = ""
        inside = fenced == "sh" or (fenced is None and line.startswith("    "))
        if inside:
            block.append(re.sub(r"(^|\s)#( .*)?$", "", line.strip()).strip())
        # An empty line parts commands within a block as well as blocks.
        elif block:
            found.append(joined(block))
            block = []
    return [one for one in found if one and one[0].split()[0] in COMMANDS]


def joined(lines):
    """Lines of a command together."""
    commands, begun = [], ""
    for line in filter(None, lines):
        begun += line.removesuffix("\\") if line.endswith("\\") else line
        if line.endswith("|"):
            begun += " "
        elif not line.endswith("\\"):
            commands.append(begun)
            begun = ""
    assert not begun, begun
    return commands


class Shell:
    """A fresh directory, and a shell in it that finds the program."""

    def __init__(self, t):
        self.t, self.dir, self.server = t, t.dir / "typed", None
        programs = self.dir / "bin"
        programs.mkdir(parents=True)
        (programs / "forebay").symlink_to(pathlib.Path(t.bin).resolve())
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
        self.environment.pop("FOREBAY_SOCKET", None)
        self.names = {"/etc/forebay": "etc", "HOST": "127.0.0.1"}
        for disk, size in DISKS.items():
            self.names[disk] = disk.removeprefix("/dev/") + ".img"
            with open(self.dir / self.names[disk], "wb") as file:
                file.truncate(size * GIB)
        self.left_out = set()
        t.later(self.stop)

    def here(self, command):
        for name, stand_in in self.names.items():
            command = command.replace(name, stand_in)
        return command

    def type(self, command):
        for begin in LEFT_OUT:
            if command.startswith(begin):
                self.left_out.add(begin)
                print("not typed:", command)
                return
        command = self.here(command)
        if re.match(r"forebay (serve|up)\b", command):
            self.serve(command)
            return
        # Offline work.
        if re.match(r"forebay (create|check|doctor)\b", command):
            self.stop()
        # What is wrong with a machine is for doctor to say: 3 is an answer.
        ok = (0, 3) if command.startswith("forebay doctor") else (0,)
        done = self.t.run(
            "bash", "-o", "pipefail", "-ec", command, ok=range(256), cwd=self.dir,
            env=self.environment,
        )
        assert done.returncode in ok, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"

    def serve(self, command):
        self.stop()
        print("$", command, "&", flush=True)
        log = open(self.dir / "log", "ab")
        self.server = subprocess.Popen(
            ["bash", "-c", f"exec {command}"], cwd=self.dir, env=self.environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )
        log.close()
        deadline = time.monotonic() + 60
        status = ["forebay", "status"]
        while subprocess.run(
            status, cwd=self.dir, env=self.environment, capture_output=True, check=False
        ).returncode:
            said = (self.dir / "log").read_text()
            assert self.server.poll() is None and time.monotonic() < deadline, said
            time.sleep(0.1)

    def stop(self):
        if self.server is not None:
            self.server.terminate()
            assert self.server.wait(60) == 0, (self.dir / "log").read_text()
            self.server = None


@once
@limit(240)
def test_typed(t):
    """Each command of the documents does what it says, in their order."""
    t.need("openssl", "nbdinfo", "nbdcopy", "qemu-img")
    shell = Shell(t)
    readme, operations = blocks("README.md"), blocks("docs/operations.md")
    assert len(readme) >= 6 and len(operations) >= 6, (readme, operations)
    (shell.dir / "disk.raw").write_bytes(b"an image" * 512)
    port = free_port()
    # `make run` ends in this; the port may be taken here.
    small = "--volume-size 1G --size 4G --cache-size 256M"
    shell.serve(f"forebay up {small} --http-listen 127.0.0.1:{port}")
    for command in (command for block in readme for command in block):
        shell.type(command)
    # The documents of operations begin with a server of `forebay up`, too.
    shell.names["10809"] = str(free_port())
    shell.names["127.0.0.1/vol0"] = f"127.0.0.1:{shell.names['10809']}/vol0"
    (shell.dir / "etc").mkdir()
    (shell.dir / "etc/forebay.toml").write_text('devices = ["../sdc.img", "../sdd.img"]\n')
    for command in (command for block in operations for command in block):
        if "keys.psk" in command and command.startswith("nbdinfo"):
            (shell.dir / "keys.psk").write_bytes((shell.dir / "etc/keys.psk").read_bytes())
        shell.type(command)
    shell.stop()
    assert shell.left_out == set(LEFT_OUT), set(LEFT_OUT) - shell.left_out
    image = t.run("qemu-img", "info", shell.dir / "backup.qcow2").stdout
    assert "file format: qcow2" in image, image
