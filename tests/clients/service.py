"""What a service manager sees: `sd_notify`, the watchdog, sockets that are passed, the journal, the
units in contrib/."""

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import time

from harness.case import Skip, cache_only, once, pool_only
from harness.data import GIB, MIB, noise

PATIENCE_S = 30
UNITS = pathlib.Path(__file__).resolve().parents[2] / "contrib" / "systemd"
JOURNAL = pathlib.Path("/run/systemd/journal/socket")
# Where inherited descriptors are in these tests: Python has 3 and those behind it.
FIRST_FD = 100


def listening(path):
    """A socket as a service manager makes it."""
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    one.bind(str(path))
    one.listen(16)
    return one


def passing(server, *sockets):
    """Has a server inherit these."""
    server.inherits = []
    for number, one in enumerate(sockets):
        server.inherits.append(fcntl.fcntl(one.fileno(), fcntl.F_DUPFD, FIRST_FD + number))
    assert server.inherits == list(range(FIRST_FD, FIRST_FD + len(sockets))), server.inherits
    more = {"LISTEN_FDS": str(len(sockets)), "LISTEN_FDS_FIRST_FD": str(FIRST_FD)}
    server.environment = {**(server.environment or {}), **more}


def told(manager, until):
    """The fields that come until one of them is this."""
    deadline = time.monotonic() + PATIENCE_S
    fields = []
    while until not in fields:
        manager.settimeout(max(0.01, deadline - time.monotonic()))
        fields += manager.recv(65536).decode().splitlines()
    return fields


@cache_only
def test_manager_is_told(t):
    """Ready when it serves, alive again and again with a line of status, not alive while it stands
    still, and that it stops."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(t.dir / "notify.sock"))
    server = t.serve(t.devices(GIB), start=False)
    t.forebay("create", "--device", server.devices[0])
    server.environment = {"NOTIFY_SOCKET": str(t.dir / "notify.sock"), "WATCHDOG_USEC": "600000"}
    server.command = ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", *server.command]
    server.start()
    before = told(manager, "READY=1")
    assert before == ["READY=1"], f"told before it was ready: {before}"
    fields = told(manager, "WATCHDOG=1")
    assert any(line.startswith("STATUS=serving 0 volumes") for line in fields), fields
    begun = time.monotonic()
    for _ in range(5):
        told(manager, "WATCHDOG=1")
    assert time.monotonic() - begun < PATIENCE_S / 2
    # An engine that stands still says nothing.
    os.kill(server.pid, signal.SIGSTOP)
    manager.settimeout(1)
    try:
        while True:
            manager.recv(65536)
    except TimeoutError:
        pass
    os.kill(server.pid, signal.SIGCONT)
    told(manager, "WATCHDOG=1")
    server.stop()
    assert "STOPPING=1" in told(manager, "STOPPING=1")


@pool_only
def test_last_word_to_a_slow_manager(t):
    """A manager that is far behind hears that the server stops all the same, and it hears it last;
    one that never reads holds no end up for long."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(t.dir / "notify.sock"))
    server = t.serve(t.devices(GIB), start=False)
    t.forebay("create", "--device", server.devices[0])
    server.environment = {"NOTIFY_SOCKET": str(t.dir / "notify.sock"), "WATCHDOG_USEC": "3000"}
    server.command = ["sh", "-c", 'WATCHDOG_PID=$$ exec "$@"', "sh", *server.command]
    for starts, reads in enumerate((True, False), 1):
        server.start()
        deadline = time.monotonic() + PATIENCE_S
        while server.log_text().count("does not read what it is told") < starts:
            assert time.monotonic() < deadline, server.log_text()
            time.sleep(0.05)
        server.process.send_signal(signal.SIGTERM)
        if reads:
            time.sleep(0.5)
            assert told(manager, "STOPPING=1")[-2] == "STOPPING=1"
            manager.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                raise AssertionError(f"told after the last word: {manager.recv(65536)}")
        assert server.process.wait(PATIENCE_S) == 0


@pool_only
def test_watchdog_of_another(t):
    """A watchdog that is for another process is not told; a manager that does not listen costs a
    warning."""
    server = t.serve(t.devices(GIB), start=False)
    t.forebay("create", "--device", server.devices[0])
    server.environment = {
        "NOTIFY_SOCKET": str(t.dir / "nobody.sock"),
        "WATCHDOG_USEC": "1000",
        "WATCHDOG_PID": "1",
    }
    server.start()
    deadline = time.monotonic() + PATIENCE_S
    while "cannot notify systemd" not in server.log_text():
        assert time.monotonic() < deadline, server.log_text()
        time.sleep(0.1)
    assert server.log_text().count("notify systemd") == 1
    server.stop()


@cache_only
def test_clients_wait_over_a_restart(t):
    """A client that connects while the server is gone is served by the next one; the sockets stay
    the manager's."""
    server = t.up(size="1G", volume_size="64M")
    server.stop()
    path = server.socket
    inherited = listening(path)
    os.chmod(path, 0o640)
    passing(server, inherited)
    server.start()
    assert os.stat(path).st_mode & 0o777 == 0o640, "the mode of the manager's socket was changed"
    handle = server.connect()
    data = noise("restart", MIB)
    handle.pwrite(data, 0)
    handle.flush()
    server.stop()
    assert path.exists(), "the manager's socket was removed"
    waiting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    waiting.settimeout(PATIENCE_S)
    waiting.connect(str(path))
    server.spawn()
    assert waiting.recv(8) == b"NBDMAGIC", "who waited was not served"
    assert server.connect().pread(MIB, 0) == data
    # The same after a kill.
    server.kill()
    again = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    again.settimeout(PATIENCE_S)
    again.connect(str(path))
    server.spawn()
    assert again.recv(8) == b"NBDMAGIC"
    assert server.connect().pread(MIB, 0) == data
    server.stop()


@pool_only
def test_all_kinds_of_sockets_are_inherited(t):
    """TCP and the control socket, too."""
    device = t.devices(GIB)[0]
    t.forebay("create", "--device", device)
    tcp = socket.create_server(("127.0.0.1", 0))
    address = "%s:%d" % tcp.getsockname()
    server = t.serve([device], "--nbd-listen", address, "--tls", "off", start=False)
    passing(server, listening(server.socket), listening(server.control), tcp)
    server.start()
    assert server.status()["pool"]["state"]
    with socket.create_connection(tcp.getsockname(), PATIENCE_S) as client:
        assert client.recv(8) == b"NBDMAGIC"
    server.stop()
    assert server.control.exists() and server.socket.exists()


@pool_only
def test_sockets_that_do_not_fit(t):
    """One that the configuration does not name, and one that nothing listens on, keep the server
    from starting."""
    device = t.devices(GIB)[0]
    t.forebay("create", "--device", device)
    server = t.serve([device], start=False)
    other = listening(t.dir / "other.sock")
    deaf = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    deaf.bind(str(server.socket))
    for passed, words in (
        (other, ("other.sock", "nbd.socket")),
        (deaf, ("LISTEN_FDS", "nothing listens")),
    ):
        passing(server, passed)
        server.spawn()
        assert server.process.wait(PATIENCE_S) == 1
        for fd in server.inherits:
            os.close(fd)
        log = server.log_text()
        assert all(word in log for word in words), log
    assert (t.dir / "other.sock").exists()


@once
@pool_only
def test_journal(t):
    """In a unit the log goes to the journal, with fields; where there is none, a warning and
    standard error."""
    server = t.serve(t.devices(GIB), "--log", "journal", start=False)
    t.forebay("create", "--device", server.devices[0])
    if JOURNAL.exists() or os.geteuid() != 0:
        raise Skip("needs root on a machine without a journal")
    server.start()
    server.says("the journal cannot be reached")
    server.stop()
    JOURNAL.parent.mkdir(parents=True, exist_ok=True)
    journal = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    journal.bind(str(JOURNAL))
    t.later(JOURNAL.unlink)
    journal.settimeout(PATIENCE_S)
    before = len(server.log_text())
    server.start()
    entries = {}
    while len(entries) < 2:
        entry = journal.recv(65536)
        said = (b"serving", b"the pool is served")
        entries.update({words: entry for words in said if words in entry})
    assert b"FOREBAY_NBD_SOCKET" in entries[said[1]], entries
    entry = entries[said[0]]
    assert (
        b"forebay::serve::shard" in entry
        and b"FOREBAY_IO" in entry
        and b"\n\x01\0\0\0\0\0\0\0006\n" in entry
        and b"SYSLOG_IDENTIFIER" in entry
    ), entry
    server.stop()
    assert server.log_text()[before:] == "", "told beside the journal"


@once
@pool_only
def test_units(t):
    """systemd understands the units."""
    if not shutil.which("systemd-analyze"):
        raise Skip("needs systemd-analyze")
    # RemoveIPC would empty /dev/shm when the process has died.
    assert "RemoveIPC=no\n" in (UNITS / "forebay.service").read_text()
    for name in ("forebay.service", "forebay.socket"):
        text = (UNITS / name).read_text().replace("/usr/bin/forebay", str(t.bin))
        (t.dir / name).write_text(text)
    words = (
        "systemd-analyze", "verify", "--man=no", t.dir / "forebay.service",
        t.dir / "forebay.socket",
    )
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    said = [line for line in (done.stdout + done.stderr).splitlines() if "forebay" in line]
    assert done.returncode == 0 and not said, done.stdout + done.stderr
