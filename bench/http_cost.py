#!/usr/bin/python3
"""What HTTP costs a server: processor time of its threads, and its memory.

    bench/http_cost.py --bin target/release/forebay

It is measured while /metrics is read over TCP and four clients follow the events. Everything is
asked for once a second, for a pool with one volume and with 300, without HTTP and with it.
Processor time is counted by the kernel for each thread, so the load of other programs changes it
little: the thread with the program's name is the engine.
"""

import argparse
import contextlib
import http.client
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

PORT = 10899
STREAMS = 4
TICKS = os.sysconf("SC_CLK_TCK")


def threads(pid):
    """Seconds of processor time of each thread, by its name."""
    spent = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        text = pathlib.Path(f"/proc/{pid}/task/{task}/stat").read_text()
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rsplit(")", 1)[1].split()
        spent[name] = spent.get(name, 0) + (int(fields[11]) + int(fields[12])) / TICKS
    return spent


def resident(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


class Clients:
    """One that reads metrics, and some that follow the events."""

    def __init__(self, home):
        self.home, self.token, self.ended = (
            home,
            (home / "http.token").read_text().strip(),
            threading.Event(),
        )
        self.bytes = 0
        self.threads = [threading.Thread(target=self.scrape)] + [
            threading.Thread(target=self.follow) for _ in range(STREAMS)
        ]
        for thread in self.threads:
            thread.start()

    def scrape(self):
        while not self.ended.wait(1):
            connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=10)
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {self.token}"})
            answer = connection.getresponse()
            self.bytes = len(answer.read())
            assert answer.status == 200, answer.status
            connection.close()

    def follow(self):
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(2)
            stream.connect(str(self.home / "http.sock"))
            stream.sendall(b"GET /v1/events?every=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not self.ended.is_set():
                with contextlib.suppress(TimeoutError):
                    assert stream.recv(1 << 16), "the stream has ended"

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()


def measure(options, volumes, served):
    with tempfile.TemporaryDirectory(prefix="forebay-http-", dir="/dev/shm") as where:
        home = pathlib.Path(where) / "pool"
        places = [f"127.0.0.1:{PORT}", f"unix:{home}/http.sock"] if served else ["none"]
        command = [
            options.bin, "up", home, "--size", "4G", "--volume-size", "1G", "--cache-size", "0",
        ]
        server = subprocess.Popen(
            [*command, *(word for place in places for word in ("--http-listen", place))],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            server.stdout.readline()
            for number in range(volumes - 1):
                create = [
                    options.bin, "volume", "create", f"v{number}", "--size", "8M", "--socket",
                    home / "control.sock",
                ]
                subprocess.run(create, check=True, stdout=subprocess.DEVNULL)
            clients = Clients(home) if served else None
            time.sleep(2)
            before = threads(server.pid)
            time.sleep(options.seconds)
            after = threads(server.pid)
            shares = {
                name: 100 * (spent - before.get(name, 0)) / options.seconds
                for name, spent in after.items()
            }
            engine = sum(share for name, share in shares.items() if name != "http")
            print(
                f"| {volumes} | {'on' if served else 'off'} | {engine:.2f} % | "
                f"{shares.get('http', 0):.2f} % | {resident(server.pid):.0f} MiB | "
                f"{clients.bytes if clients else 0:,} |"
            )
            if clients:
                clients.stop()
        finally:
            server.terminate()
            server.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, default=30, help="of each measurement")
    options = parser.parse_args()
    print(
        "| volumes | HTTP | engine, of a core | HTTP's thread | memory | bytes of metrics |\n"
        "| --- | --- | --- | --- | --- | --- |"
    )
    for volumes in (1, 300):
        for served in (False, True):
            measure(options, volumes, served)


if __name__ == "__main__":
    main()
