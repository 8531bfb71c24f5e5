"""A real Prometheus scrapes a real server: its metrics, the alerts and every expression of the
Grafana dashboard. Skipped where Debian's package is missing."""

import json
import pathlib
import re
import subprocess
import time
import urllib.parse
import urllib.request

from clients.http import free_port, up

from harness.case import limit, once
from harness.data import KIB, MIB, noise

CONTRIB = pathlib.Path(__file__).resolve().parents[2] / "contrib"


class Prometheus:
    """The process and its API."""

    def __init__(self, t, config):
        t.run("promtool", "check", "config", config)
        port = free_port()
        self.base = f"http://127.0.0.1:{port}/api/v1/"
        command = [
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={t.dir}/tsdb",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with open(t.dir / "prometheus.log", "wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        t.later(lambda: (self.process.terminate(), self.process.wait(30)))

    def ask(self, path, **fields):
        with urllib.request.urlopen(
            f"{self.base}{path}?{urllib.parse.urlencode(fields)}", timeout=30
        ) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def wait(self, expression, value, seconds=30):
        """Waits until the first sample of an expression is so."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.query(expression)
            except OSError as error:
                found = str(error)
            if found and not isinstance(found, str) and float(found[0]["value"][1]) == value:
                return
            assert time.monotonic() < deadline and self.process.poll() is None, (
                f"{expression} is {found}, not {value}"
            )
            time.sleep(0.2)

    def alerts(self):
        return {
            rule["name"]: rule for group in self.ask("rules")["groups"] for rule in group["rules"]
        }


@once
@limit(120)
def test_scrape(t):
    """What it scrapes is what the status says; no rule and no panel is wrong; an alert comes when
    it should."""
    t.need("prometheus", "promtool")
    server, unix, tcp = up(t, "--cache-size", "64M")
    rules = CONTRIB / "prometheus" / "forebay.rules.yml"
    config = t.dir / "prometheus.yml"
    config.write_text(f"""
global: {{ scrape_interval: 1s, evaluation_interval: 1s }}
rule_files: [ "{rules}" ]
scrape_configs:
  - job_name: forebay
    authorization: {{ credentials_file: "{t.dir}/data/http.token" }}
    static_configs: [ {{ targets: [ "127.0.0.1:{tcp.place}" ] }} ]
""")
    prometheus = Prometheus(t, config)
    prometheus.wait('up{job="forebay"}', 1)
    handle = server.connect()
    for at in range(64):
        handle.pwrite(noise(f"prometheus {at}", 64 * KIB), at * 64 * KIB)
        handle.pread(4 * KIB, at * KIB)
    handle.flush()
    prometheus.wait('forebay_request_latency_seconds_count{op="read"}', 64)
    capacity = server.status()["pool"]["capacity_bytes"]
    prometheus.wait("forebay_pool_capacity_bytes", capacity)
    time.sleep(2)

    board = json.loads((CONTRIB / "grafana" / "forebay.json").read_text())
    instance = f"127.0.0.1:{tcp.place}"
    empty, shown = [], 0
    for panel in board["panels"]:
        for target in panel.get("targets", []):
            expression = target["expr"].replace("$instance", instance)
            expression = re.sub(r"\$__(rate_interval|interval|range)", "1m", expression)
            assert "$" not in expression, expression
            shown += 1
            if not prometheus.query(expression):
                empty.append(panel["title"])
    print("panels without data:", empty)
    assert shown > 30 and len(empty) < shown // 4, empty
    [variable] = [
        one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"
    ]
    name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable).groups()
    assert [one["metric"][label] for one in prometheus.query(name)] == [instance]

    alerts = prometheus.alerts()
    assert len(alerts) > 8 and all(rule["health"] == "ok" for rule in alerts.values()), alerts
    assert all(rule["state"] == "inactive" for rule in alerts.values()), alerts
    device = unix("GET", "/v1/devices")[1]
    unix("POST", f"/v1/devices/{device['id']}/offline")
    prometheus.wait('forebay_pool_state{state="degraded"}', 1)
    wait_for_alert(prometheus, "ForebayPoolDegraded")
    server.kill()
    prometheus.wait('up{job="forebay"}', 0)
    wait_for_alert(prometheus, "ForebayDown")


def wait_for_alert(prometheus, name, seconds=30):
    """It is seen, and fires after the time that it waits for."""
    deadline = time.monotonic() + seconds
    while prometheus.alerts()[name]["state"] not in ("pending", "firing"):
        assert time.monotonic() < deadline, prometheus.alerts()[name]
        time.sleep(0.2)
