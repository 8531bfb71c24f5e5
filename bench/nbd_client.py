"""As much of an NBD client as timing needs: enter an export, one request, its answer."""

import socket
import struct

READ, FLUSH = 0, 3
TIMEOUT_S = 120


class Client:
    """A connection that has entered an export."""

    def __init__(self, path, export):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(str(path))
            self.take(18)
            name = export.encode()
            self.socket.sendall(
                struct.pack(">I", 3) + struct.pack(">QII", 0x49484156454F5054, 1, len(name)) + name
            )
            self.take(10)
        except BaseException:
            self.socket.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # NBD_CMD_DISC: some servers would log a closed connection as a fault.
        try:
            self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, 2, 0, 0, 0))
        except OSError:
            pass
        self.socket.close()

    def read(self, offset, length):
        self.ask(READ, offset, length)
        return self.take(length)

    def flush(self):
        self.ask(FLUSH, 0, 0)

    def ask(self, command, offset, length):
        self.socket.sendall(struct.pack(">IHHQQI", 0x25609513, 0, command, 1, offset, length))
        magic, error, _cookie = struct.unpack(">IIQ", self.take(16))
        if magic != 0x67446698 or error:
            raise RuntimeError(f"NBD request {command} failed: {error}")

    def take(self, length):
        got = b""
        while len(got) < length:
            more = self.socket.recv(length - len(got))
            if not more:
                raise ConnectionError("the server closed the connection")
            got += more
        return got


def first_reply(path, export):
    """Whether a server that may be just starting answers a read of its first block."""
    try:
        client = Client(path, export)
    except OSError:
        # Nobody listens yet, or the kernel is just closing the socket of the server that was
        # killed.
        return False
    with client:
        client.read(0, 4096)
    return True
