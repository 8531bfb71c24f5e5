"""Clients without credentials cannot shut others out: hundreds of silent connections to each
listener, and everybody else is served."""

import os
import socket

from clients.http import Api
from clients.tls import KEYS, clients, free_port, handle_of, keys_file
from harness.case import limit, once
from harness.data import MIB, noise

SILENT = 400
PAGE = "clients-crowd"


def silent(place, count=SILENT, sends=b"", host="127.0.0.1"):
    """Connections that say nothing, or no more than this."""
    held = []
    for _ in range(count):
        if isinstance(place, int):
            one = socket.create_connection((host, place), source_address=(host, 0))
        else:
            one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            one.connect(str(place))
        held.append(one)
        try:
            one.sendall(sends)
        except OSError:
            pass  # It made room for another one already.
    return held


def is_open(connection):
    connection.settimeout(0.2)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return True
    except OSError:
        pass
    return False


def crowds(server):
    return {one["kind"]: one for one in server.status()["server"].get("crowds", [])}


def problems(server):
    return [one["what"] for one in server.status()["health"] if one["page"] == PAGE]


@once
@limit(120)
def test_silent_connections_shut_nobody_out(t):
    """On NBD over TCP with TLS and over the unix socket, HTTP over TCP and over its unix socket."""
    keys, port, http = keys_file(t), free_port(), free_port()
    server = t.up(
        "--nbd-listen", f"127.0.0.1:{port}", "--tls-psk", keys, "--http-listen",
        f"127.0.0.1:{http}", "--http-listen", f"unix:{t.dir / 'http.sock'}", size="1G",
        volume_size="64M",
    )
    token = (server.control.parent / "http.token").read_text().strip()
    api, local = Api(http, token), Api(t.dir / "http.sock")
    before = handle_of(port, "vol0", keys=keys, user="vm1")
    data = noise("crowd", MIB)
    before.pwrite(data, 0)
    # A client that was granted something keeps its place.
    page = socket.create_connection(("127.0.0.1", http))
    page.sendall(
        f"GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n"
        .encode()
    )
    assert b"200 OK" in page.recv(64)
    asks = b"GET /v1/status HTTP/1.1\r\nHost: loc"
    held = [
        *silent(port), *silent(server.socket), *silent(http, sends=asks),
        *silent(t.dir / "http.sock", sends=asks), *silent(server.control),
    ]
    # All are served, who was there before and who comes now; of each kind.
    assert before.pread(MIB, 0) == data
    assert server.connect().pread(MIB, 0) == data
    assert handle_of(port, "vol0", keys=keys, user="vm2").pread(MIB, 0) == data
    assert api("GET", "/v1/status")["pool"]["state"] == "online"
    assert local("GET", "/v1/status")["pool"]["state"] == "online"
    assert is_open(page)
    told = crowds(server)
    assert set(told) == {"nbd-unix", "nbd-tcp", "http"}, told
    assert not any(one["refused"] for one in told.values()), told
    assert told["nbd-tcp"]["from"].startswith("127.0.0.1:"), told
    assert f"user {os.geteuid()}" in told["nbd-unix"]["from"], told
    assert len(problems(server)) == 3, problems(server)
    metrics = api.raw("GET", "/metrics")[2]
    for name in ("nbd", "http"):
        (line,) = [
            line for line in metrics.splitlines()
            if line.startswith(f"forebay_{name}_connections_crowded_out_total ")
        ]
        assert float(line.split()[1]) > 100, line
    server.says("have not said which volume they want", "had not asked for anything")
    # Not a line for each.
    assert server.log_text().count("had not asked for anything") <= 20
    for one in held:
        one.close()


@once
@limit(60)
def test_one_host_does_not_close_what_another_one_begins(t):
    """A slow handshake of one address outlives hundreds of silent connections of another."""
    keys, port = keys_file(t), free_port()
    room = {"size": "1G", "volume_size": "16M"}
    server = t.up("--nbd-listen", f"0.0.0.0:{port}", "--tls-psk", keys, **room)
    (slow,) = silent(port, count=1, host="127.0.0.3")
    held = silent(port, host="127.0.0.2")
    assert is_open(slow) and crowds(server)["nbd-tcp"]["from"].startswith("127.0.0.2:")
    assert sum(is_open(one) for one in held[-10:]) == 10 and not is_open(held[0])


@once
@limit(60)
def test_what_is_refused_is_in_the_log(t):
    """A wrong key, no TLS where it is needed, a volume that is not there, a wrong token: each with
    the peer, and not more than some lines of each."""
    keys, port, http = keys_file(t), free_port(), free_port()
    server = t.up(
        "--nbd-listen", f"127.0.0.1:{port}", "--tls-psk", keys, "--http-listen",
        f"127.0.0.1:{http}", size="1G", volume_size="16M",
    )
    wrong = t.dir / "wrong.psk"
    wrong.write_text(f"vm1:{KEYS['vm2']}\n")
    plain = ["qemu-img", "info", f"nbd://127.0.0.1:{port}/vol0"]
    t.run(*plain, ok=(1,))
    server.says("TLS is required, and the client did not begin it", "from=127.0.0.1:")
    for export, which, word in (
        ("vol0", wrong, "a handshake of TLS failed"),
        ("none", keys, "vm1 asked for the volume"),
    ):
        try:
            handle_of(port, export, keys=which, user="vm1")
            raise AssertionError(export)
        except Exception as error:
            assert not isinstance(error, AssertionError), error
        server.says(word)
    for _ in range(40):
        Api(http, "0123456789abcdef0123").raw("GET", "/v1/status")
    server.says("an HTTP request was refused: the token is not the right one", "from=127.0.0.1")
    assert server.log_text().count("an HTTP request was refused") == 10


@once
@limit(60)
def test_who_is_behind_a_unix_socket(t):
    """`forebay clients` has the program, the process and the user."""
    server = t.up(size="1G", volume_size="16M")
    handle = server.connect()
    (one,) = clients(server)
    assert one["process"]["pid"] == os.getpid() and one["process"]["uid"] == os.geteuid(), one
    text = t.forebay("clients", "--socket", server.control).stdout
    assert f"{one['process']['program']} {os.getpid()}, user " in text, text
    handle.shutdown()
