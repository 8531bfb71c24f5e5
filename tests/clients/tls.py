"""TLS as clients speak it: qemu-img, libnbd, nbdkit; certificates and keys, rules, read-only
volumes, modes of sockets."""

import json
import os
import shutil
import signal
import socket
import stat
import time

import nbd

from clients.http import Api
from harness.case import Skip, cache_only, limit, once, pool_only
from harness.data import KIB, MIB, noise

KEYS = {"vm1": "00112233445566778899aabbccddeeff", "vm2": "ffeeddccbbaa99887766554433221100"}
PATIENCE_S = 40


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Authority:
    """Certificates as a site has them: a directory for the server, one for each client."""

    def __init__(self, t, name="authority"):
        if not shutil.which("openssl"):
            raise Skip("openssl is not installed")
        self.t, self.dir = t, t.dir / name
        self.dir.mkdir()
        self.key("ca-key.pem")
        self.openssl(
            "req", "-x509", "-new", "-key", "ca-key.pem", "-subj", "/CN=Test authority", "-days",
            "2", "-out", "ca-cert.pem", "-addext", "basicConstraints=critical,CA:TRUE", "-addext",
            "keyUsage=critical,keyCertSign,cRLSign",
        )

    def openssl(self, *arguments):
        self.t.run("openssl", *arguments, cwd=self.dir)

    def key(self, name):
        self.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", name)
        os.chmod(self.dir / name, 0o600)

    def signed(self, end, common_name, serial):
        """A directory with the certificate of a server or of a client."""
        to = self.dir / f"{end}-{common_name}-{serial}"
        to.mkdir()
        self.key(f"{end}-key.pem")
        usage, names = (
            ("serverAuth", "IP:127.0.0.1,DNS:localhost")
            if end == "server"
            else ("clientAuth", f"DNS:{common_name}.lan")
        )
        (self.dir / "extensions").write_text(
            f"keyUsage=critical,digitalSignature\nextendedKeyUsage={usage}\n"
            f"subjectAltName={names}\n"
        )
        self.openssl(
            "req", "-new", "-key", f"{end}-key.pem", "-subj", f"/CN={common_name}", "-out",
            "request.pem",
        )
        self.openssl(
            "x509", "-req", "-in", "request.pem", "-CA", "ca-cert.pem", "-CAkey", "ca-key.pem",
            "-days", "2", "-set_serial", str(serial), "-extfile", "extensions", "-out",
            f"{end}-cert.pem",
        )
        for name in (f"{end}-key.pem", f"{end}-cert.pem"):
            (self.dir / name).rename(to / name)
        shutil.copy(self.dir / "ca-cert.pem", to)
        return to


def keys_file(t, keys=KEYS):
    path = t.dir / "keys.psk"
    path.write_text("".join(f"{name}:{key}\n" for name, key in keys.items()))
    os.chmod(path, 0o600)
    return path


def with_tls(t, *more, **room):
    """A server on TCP, and its port."""
    port = free_port()
    return t.up("--nbd-listen", f"127.0.0.1:{port}", *more, **room), port


def handle_of(port, export, certificates=None, keys=None, user=None):
    handle = nbd.NBD()
    handle.set_tls(nbd.TLS_REQUIRE)
    if certificates:
        handle.set_tls_certificates(str(certificates))
        handle.set_tls_verify_peer(True)
        handle.set_tls_username(user or "")
    if keys:
        handle.set_tls_psk_file(str(keys))
        handle.set_tls_username(user)
    handle.set_export_name(export)
    handle.connect_tcp("127.0.0.1", str(port))
    return handle


def refused(port, export, **who):
    """Why a client is refused."""
    try:
        handle = handle_of(port, export, **who)
    except nbd.Error as error:
        return str(error)
    raise AssertionError(f"{export} is open to {who} with {handle.get_size()} bytes")


def address_of(handle):
    """Of a client's own end."""
    with socket.socket(fileno=os.dup(handle.aio_get_fd())) as end:
        return "{}:{}".format(*end.getsockname()[:2])


def clients(server):
    return json.loads(server.case.forebay("clients", "--json", "--socket", server.control).stdout)


@cache_only
def test_certificates_with_every_client(t):
    """libnbd, qemu-img and nbdkit's client read and write over TLS with certificates; no client
    without one."""
    authority = Authority(t)
    site, own = authority.signed("server", "server", 2), authority.signed("client", "vm1", 3)
    server, port = with_tls(t, "--tls-certificates", site, volume_size="64M", size="1G")
    data = noise("tls", 8 * MIB)
    handle = handle_of(port, "vol0", certificates=own)
    handle.pwrite(data[:4 * MIB], 0)
    for at in range(4 * MIB, 8 * MIB, 512 * KIB):
        handle.pwrite(data[at:at + 512 * KIB], at)
    handle.flush()
    assert handle.pread(8 * MIB, 0) == data
    (one,) = clients(server)
    at = address_of(handle)
    assert one["address"] == at, (one, at)
    assert one["tls"]["names"] == ["vm1", "vm1.lan"] and one["tls"]["proof"] == "certificate", one
    assert (
        one["tls"]["version"] == "TLSv1.3" and one["export"] == "vol0" and not one["read_only"]
    ), one
    shown = t.forebay("clients", "--socket", server.control).stdout
    assert "vm1, vm1.lan" in shown and "TLSv1.3" in shown and "127.0.0.1" in shown, shown
    log = server.says("client connected")
    said = [line for line in log.splitlines() if "client connected" in line]
    assert said and at in said[0], said
    handle.shutdown()
    creds = f"tls-creds-x509,id=tls0,endpoint=client,dir={own}"
    image = f"driver=nbd,host=127.0.0.1,port={port},export=vol0,tls-creds=tls0"
    info = t.run(
        "qemu-img", "info", "--output=json", "--object", creds, "--image-opts", image
    ).stdout
    assert json.loads(info)["virtual-size"] == 64 * MIB, info
    t.run(
        "qemu-img", "convert", "--object", creds, "--image-opts", image, "-O", "raw",
        t.dir / "out.raw",
    )
    with open(t.dir / "out.raw", "rb") as out:
        assert out.read(8 * MIB) == data
    io = t.run(
        "qemu-io", "--object", creds, "--image-opts", f"{image}", "-c", "write -P 0x5a 16M 1M",
        "-c", "flush", "-c", "read -P 0x5a 16M 1M",
    ).stdout
    assert "1 MiB" in io, io
    if shutil.which("nbdkit"):
        t.run(
            "nbdkit", "-U", "-", "nbd", "hostname=127.0.0.1", f"port={port}", "export=vol0",
            "tls=require", f"tls-certificates={own}", "tls-verify=true", "--run",
            f"nbdcopy \"$uri\" {t.dir}/copy.raw",
        )
        with open(t.dir / "copy.raw", "rb") as copy:
            assert copy.read(8 * MIB) == data
            copy.seek(16 * MIB)
            assert copy.read(MIB) == b"\x5a" * MIB
    # In the clear, without a certificate, with that of a stranger: not even a list.
    t.run("nbdinfo", "--list", f"nbd://127.0.0.1:{port}", ok=(1,))
    plain = t.run("qemu-img", "info", f"nbd://127.0.0.1:{port}/vol0", ok=(1,)).stderr
    assert "TLS" in plain, plain
    stranger = Authority(t, "strangers")
    foreign = stranger.signed("client", "vm1", 4)
    shutil.copy(authority.dir / "ca-cert.pem", foreign)
    bare = t.dir / "bare"
    bare.mkdir()
    shutil.copy(authority.dir / "ca-cert.pem", bare)
    for wrong in (foreign, bare):
        refused(port, "vol0", certificates=wrong)
    log = server.says("the certificate is refused", "did not return a certificate")
    failed = [line for line in log.splitlines() if "a handshake of TLS failed" in line]
    assert failed and all("127.0.0.1:" in line for line in failed), failed
    status = server.status()["server"]
    assert status["tls_handshakes"] >= 3 and status["tls_handshakes_failed"] >= 2, status
    # The unix socket is what it was.
    local = server.connect()
    assert local.pread(8 * MIB, 0) == data and clients(server)[-1]["address"] is None
    server.stop()


@pool_only
def test_keys_with_every_client(t):
    """Keys that were agreed on: libnbd, qemu-img, nbdkit; wrong ones are refused."""
    keys = keys_file(t)
    server, port = with_tls(t, "--tls-psk", keys, volume_size="64M", size="1G")
    handle = handle_of(port, "vol0", keys=keys, user="vm2")
    data = noise("psk", 3 * MIB)
    handle.pwrite(data, 4096)
    assert handle.pread(len(data), 4096) == data
    (one,) = clients(server)
    assert (one["tls"]["proof"], one["tls"]["names"]) == ("psk", ["vm2"]), one
    # qemu looks for a file of this name in its directory.
    creds = f"tls-creds-psk,id=tls0,endpoint=client,dir={t.dir},username=vm1"
    image = f"driver=nbd,host=127.0.0.1,port={port},export=vol0,tls-creds=tls0"
    io = t.run("qemu-io", "--object", creds, "--image-opts", image, "-c", "read 0 3M").stdout
    assert "3 MiB" in io, io
    if shutil.which("nbdkit"):
        t.run(
            "nbdkit", "-U", "-", "nbd", "hostname=127.0.0.1", f"port={port}", "export=vol0",
            "tls=require", f"tls-psk={keys}", "tls-username=vm1", "--run", "nbdinfo \"$uri\"",
        )
    other = t.dir / "other.psk"
    other.write_text(f"vm1:{KEYS['vm2']}\nvm3:{KEYS['vm1']}\n")
    for user in ("vm1", "vm3"):
        refused(port, "vol0", keys=other, user=user)
    log = server.says('no key has the name "vm3"')
    assert 'the name "vm1"' not in log, log
    server.stop()


def configured(t, text, volumes=("vol0",)):
    """A server with a configuration file, and its port."""
    port = free_port()
    device = t.devices(1 << 30)[0]
    t.forebay("create", "--device", device)
    config = t.dir / "forebay.toml"
    config.write_text(text.format(device=device, port=port, dir=t.dir))
    server = t.serve([device], start=False)
    words = [str(word) for word in server.command]
    at = words.index("serve")
    server.command = [
        *words[:at], "serve", "--config", str(config), "--nbd-socket", str(server.socket),
        "--socket", str(server.control),
    ]
    server.start()
    for name in volumes:
        t.forebay("volume", "create", name, "--size", "16M", "--socket", server.control)
    return server, port


@pool_only
def test_rules(t):
    """Clients see and open what rules give them, by the names that they have proved; the rest is
    not there for them."""
    keys = keys_file(t)
    server, port = configured(t, """
devices = ["{device}"]
access = [
    {{ client = "vm1", volumes = ["vm1-*", "shared"] }},
    {{ client = "*", volumes = ["iso"], read_only = true }},
]
[nbd]
listen = ["127.0.0.1:{port}"]
[tls]
psk = "keys.psk"
""", volumes=("vm1-root", "vm2-root", "shared", "iso"))
    assert "what all who can connect" not in server.log_text()

    def listed(user):
        handle = nbd.NBD()
        handle.set_opt_mode(True)
        handle.set_tls(nbd.TLS_REQUIRE)
        handle.set_tls_psk_file(str(keys))
        handle.set_tls_username(user)
        handle.connect_tcp("127.0.0.1", str(port))
        names = []
        handle.opt_list(lambda name, description: names.append(name) and 0)
        handle.opt_abort()
        return sorted(names)

    assert listed("vm1") == ["iso", "shared", "vm1-root"], listed("vm1")
    assert listed("vm2") == ["iso"], listed("vm2")
    root = handle_of(port, "vm1-root", keys=keys, user="vm1")
    root.pwrite(b"x" * 4096, 0)
    assert not root.is_read_only()
    iso = handle_of(port, "iso", keys=keys, user="vm1")
    assert iso.is_read_only() and iso.pread(4096, 0) == bytes(4096)
    iso.set_strict_mode(0)
    for change in (
        lambda: iso.pwrite(b"y" * 4096, 0),
        lambda: iso.trim(4096, 0),
        lambda: iso.zero(4096, 0),
    ):
        try:
            change()
            raise AssertionError("a read-only export was changed")
        except nbd.Error as error:
            assert error.errno == "EPERM", error
    # The only one that it may open is the default one.
    assert handle_of(port, "", keys=keys, user="vm2").get_size() == 16 * MIB
    for user, name in (("vm2", "vm1-root"), ("vm1", "vm2-root"), ("vm1", "none"), ("vm1", "")):
        why = refused(port, name, keys=keys, user=user)
        assert "no such export" in why or "ENOENT" in why or "not found" in why.lower(), why
    assert sum(c["read_only"] for c in clients(server)) == 1
    # Who may use the unix socket may open all.
    assert server.connect("vm2-root").get_size() == 16 * MIB
    server.stop()


@pool_only
def test_read_only_volume(t):
    """A volume that is read-only cannot be changed by those who have it open, nor resized or
    deleted, also after a restart."""
    server = t.up(volume_size="16M", size="1G")
    handle = server.connect(strict=False)
    handle.pwrite(b"a" * 4096, 0)
    t.forebay("volume", "read-only", "vol0", "on", "--socket", server.control)
    for _ in range(2):
        try:
            handle.pwrite(b"b" * 4096, 0)
            raise AssertionError("a read-only volume was changed")
        except nbd.Error as error:
            assert error.errno == "EPERM", error
        assert server.connect().is_read_only()
        for verb in (("resize", "vol0", "--size", "32M"), ("delete", "vol0", "--yes")):
            text = t.forebay("volume", *verb, "--socket", server.control, ok=(1,)).stderr
            assert "volume read-only vol0 off" in text, text
        shown = json.loads(t.forebay("volume", "list", "--json", "--socket", server.control).stdout)
        assert shown[0]["read_only"] is True and handle.pread(4096, 0) == b"a" * 4096, shown
        handle.shutdown()
        server.kill()
        server.start()
        handle = server.connect(strict=False)
    t.forebay("volume", "read-only", "vol0", "off", "--socket", server.control)
    # The client that was told so at its start is told nothing new, and may write again once it
    # connects anew.
    again = server.connect()
    assert not again.is_read_only()
    again.pwrite(b"c" * 4096, 0)
    t.forebay("volume", "read-only", "none", "on", "--socket", server.control, ok=(1,))
    server.stop()


@once
def test_what_is_renewed_and_revoked(t):
    """Certificates that were renewed or revoked hold for new clients without a restart; nonsense
    changes nothing."""
    authority = Authority(t)
    site, own = authority.signed("server", "server", 2), authority.signed("client", "vm1", 3)
    server, port = with_tls(t, "--tls-certificates", site, volume_size="16M", size="1G")
    old = handle_of(port, "vol0", certificates=own)

    def until(words):
        deadline = time.monotonic() + PATIENCE_S
        while words not in server.log_text():
            assert time.monotonic() < deadline, server.log_text()
            time.sleep(0.2)

    good = (site / "server-cert.pem").read_bytes()
    (site / "server-cert.pem").write_text("nonsense\n")
    until("keeping the old ones")
    handle_of(port, "vol0", certificates=own).shutdown()
    (site / "server-cert.pem").write_bytes(good)
    new = authority.dir
    (new / "index.txt").write_text("R\t401231000000Z\t250101000000Z\t03\tunknown\t/CN=vm1\n")
    (new / "crlnumber").write_text("01\n")
    (new / "ca.conf").write_text(
        "[ca]\ndefault_ca = one\n[one]\ndatabase = index.txt\ncrlnumber = crlnumber\n"
        "default_md = sha256\n"
    )
    authority.openssl(
        "ca", "-config", "ca.conf", "-gencrl", "-crldays", "2", "-keyfile", "ca-key.pem", "-cert",
        "ca-cert.pem", "-out", "ca-crl.pem",
    )
    shutil.copy(new / "ca-crl.pem", site)
    until("were read again")
    refused(port, "vol0", certificates=own)
    server.says("revoked")
    # Who was there before stays.
    assert old.pread(4096, 0) == bytes(4096)
    server.stop()


def problems(server):
    return [one["what"] for one in server.status()["health"] if one["page"] == "tls"]


def until_told(server, *words):
    """Waits until the status has these problems of TLS and no others."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = problems(server)
        if len(found) == len(words) and all(w in one for w, one in zip(words, found)):
            return found
        assert time.monotonic() < deadline, (words, found)
        time.sleep(0.2)


@once
@pool_only
@limit(150)
def test_files_that_end(t):
    """Certificates and lists that end soon, or have expired, are told before clients are locked
    out, and when they are."""
    authority = Authority(t)
    site, own = authority.signed("server", "server", 2), authority.signed("client", "vm1", 3)
    new = authority.dir
    (new / "index.txt").write_text("")
    (new / "crlnumber").write_text("01\n")
    (new / "serial").write_text("10\n")
    (new / "ca.conf").write_text(
        "[ca]\ndefault_ca = one\n[one]\ndatabase = index.txt\ncrlnumber = crlnumber\n"
        "serial = serial\nunique_subject = no\nnew_certs_dir = .\npolicy = any\n"
        "default_md = sha256\n[any]\ncommonName = supplied\n"
    )
    by = ("ca", "-batch", "-config", "ca.conf", "-keyfile", "ca-key.pem", "-cert", "ca-cert.pem")

    def server_until(days):
        """A certificate of the server's key that began 80 days ago, in the place of the old one."""
        key = site / "server-key.pem"
        authority.openssl("req", "-new", "-key", key, "-subj", "/CN=server", "-out", "request.pem")
        day = [time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + n * 86400 + 60))
               for n in (-80, days)]
        authority.openssl(
            *by, "-notext", "-in", "request.pem", "-startdate", day[0], "-enddate", day[1],
            "-extfile", "extensions", "-out", "new.pem",
        )
        (new / "new.pem").rename(site / "server-cert.pem")

    (new / "extensions").write_text(
        "extendedKeyUsage=serverAuth\nsubjectAltName=IP:127.0.0.1,DNS:localhost\n"
    )

    def revoked_until(*end):
        authority.openssl(*by, "-gencrl", *end, "-out", "ca-crl.pem")
        shutil.copy(new / "ca-crl.pem", site / "ca-crl.new")
        (site / "ca-crl.new").rename(site / "ca-crl.pem")

    def doctor(level, status):
        """What it says of TLS at this level."""
        said = t.forebay("doctor", "--config", config, "--json", ok=(status,)).stdout
        return [
            f"{one['found']}; {one['todo']}" for one in json.loads(said)
            if one["check"] == "tls" and one["level"] == level
        ]

    server, port = with_tls(
        t, "--tls-certificates", site, "--http-listen", f"unix:{t.dir}/data/http.sock",
        volume_size="16M", size="1G",
    )
    home, config = t.dir / "data", t.dir / "forebay.toml"
    config.write_text(f"""
devices = ["{home}/pool0.img", "{home}/pool1.img"]
nbd = {{ socket = "{server.socket}", listen = ["127.0.0.1:{port}"] }}
control = {{ socket = "{server.control}" }}
http = {{ listen = ["none"] }}
tls = {{ certificates = "{site}" }}
""")
    handle_of(port, "vol0", certificates=own).shutdown()
    assert problems(server) == [], problems(server)
    server_until(13)
    (told,) = until_told(server, "server-cert.pem ends in 13 days")
    assert "clients refuse the server" in told, told
    (said,) = doctor("warning", 0)
    assert "ends in 13 days" in said, said
    shown = " ".join(t.forebay("status", "--socket", server.control).stdout.split())
    assert "ends in 13 days" in shown and "without a restart" in shown, shown
    server.says("ends in 13 days")
    text = Api(t.dir / "data" / "http.sock").raw("GET", "/metrics")[2]
    (end,) = [
        float(line.split()[1]) for line in text.splitlines()
        if line.startswith('forebay_tls_expiry_timestamp_seconds{file="server-cert.pem"}')
    ]
    assert abs(end - time.time() - 13 * 86400) < 300, end
    assert 'forebay_problem{page="tls"} 1' in text, text
    # The one that has expired is not taken: the old one is kept, and the next start refused.
    server_until(-1)
    until_told(server, "server-cert.pem: the certificate has expired", "ends in 13 days")
    (said,) = doctor("problem", 3)
    assert "the certificate has expired" in said, said
    handle_of(port, "vol0", certificates=own).shutdown()
    server_until(100)
    until_told(server)
    revoked_until("-crlsec", "3")
    until_told(server, "ca-crl.pem has expired")
    refused(port, "vol0", certificates=own)
    server.says("CRL has expired")
    (said,) = doctor("problem", 3)
    assert "ca-crl.pem has expired" in said and "-gencrl" in said, said
    revoked_until("-crldays", "30")
    until_told(server)
    handle_of(port, "vol0", certificates=own).shutdown()
    server.stop()


@once
@pool_only
def test_too_many_clients(t):
    """Those that are too many are counted, and the status says how many there can be."""
    server = t.up("--max-connections", "2", volume_size="16M", size="1G")
    kept = [server.connect() for _ in range(2)]
    for _ in range(3):
        try:
            server.connect()
            raise AssertionError("a third client came in")
        except nbd.Error:
            pass
    shown = t.forebay("status", "--socket", server.control).stdout
    assert "2 of 2 connected, 3 refused" in shown, shown
    for handle in kept:
        handle.shutdown()
    server.stop()


@once
@pool_only
def test_hangup_has_keys_read_again(t):
    """At once, and not when it is time to look at them."""
    keys = keys_file(t, {"vm2": KEYS["vm1"]})
    begun = time.monotonic()
    server, port = configured(t, """
devices = ["{device}"]
[nbd]
listen = ["127.0.0.1:{port}"]
[tls]
psk = "keys.psk"
""")
    theirs = t.dir / "theirs.psk"
    theirs.write_text(f"vm1:{KEYS['vm1']}\n")
    refused(port, "vol0", keys=theirs, user="vm1")
    keys.write_text(f"{keys.read_text()}vm1:{KEYS['vm1']}\n")
    os.kill(server.pid, signal.SIGHUP)
    while "keys of TLS were read again" not in server.log_text():
        assert time.monotonic() - begun < 8, server.log_text()
        time.sleep(0.05)
    assert handle_of(port, "vol0", keys=theirs, user="vm1").get_size() == 16 * MIB
    server.says("nothing changed")
    server.stop()


@once
def test_what_is_refused_at_the_start(t):
    """TCP without TLS where one has not said so, keys that others can read, files that are not
    there: told with what to do."""
    keys = keys_file(t)
    listen = ("--nbd-listen", "127.0.0.1:0")
    for more, status, words in (
        (listen, 2, "--tls off"),
        ((*listen, "--tls", "offer"), 2, "--tls-psk"),
        (
            (*listen, "--tls-certificates", t.dir / "none"),
            2,
            "server-cert.pem: there is no such file",
        ),
        ((*listen, "--tls-psk", t.dir / "none"), 2, "none: there is no such file"),
        (("--nbd-socket-mode", "999"), 2, "0660"),
        (("--nbd-socket-group", "no-such-group"), 2, "no-such-group"),
    ):
        said = t.forebay(
            "up", t.dir / "new", "--size", "1G", "--http-listen", "none", *more, ok=(status,)
        ).stderr
        assert words in said, said
        assert not (t.dir / "new").exists(), "nothing may be left behind"
    os.chmod(keys, 0o644)
    said = t.forebay(
        "up", t.dir / "new", "--size", "1G", "--http-listen", "none", *listen, "--tls-psk", keys,
        ok=(2,),
    ).stderr
    assert "0600" in said and KEYS["vm1"] not in said, said


@once
def test_modes_of_sockets(t):
    """Sockets have the modes and groups that the configuration says."""
    group = os.getgid()
    server, _ = configured(t, f"""
devices = ["{{device}}"]
[nbd]
socket_mode = "0666"
[control]
socket_group = "{group}"
[http]
listen = "unix:http.sock"
socket_mode = "0640"
socket_group = "{group}"
""", volumes=())
    for path, mode in (
        (server.socket, 0o666),
        (server.control, 0o660),
        (t.dir / "http.sock", 0o640),
    ):
        found = os.stat(path)
        assert stat.S_IMODE(found.st_mode) == mode and found.st_gid == group, (
            path,
            oct(found.st_mode),
            found.st_gid,
        )
    server.stop()
