"""The server's control socket: a line of JSON asks, a line of JSON answers."""

import json
import socket

TIMEOUT_S = 60


class Control:
    """A connection to it, kept open: asking again costs the server no process."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(TIMEOUT_S)
            self.socket.connect(str(path))
        except BaseException:
            self.socket.close()
            raise
        self.lines = self.socket.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lines.close()
        self.socket.close()

    def ask(self, request, **more):
        self.socket.sendall(json.dumps({"version": 1, "request": request, **more}).encode() + b"\n")
        line = self.lines.readline()
        if not line:
            raise ConnectionError("the server closed its control socket")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{request}: {reply['error']['message']}")
        return reply["ok"]

    def cache_status(self):
        return self.ask("status")["cache"]
