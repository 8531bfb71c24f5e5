// The last hour: figures of now, and charts.

import { make, byId, put, mark } from "./elements.js";
import { ask } from "./api.js";
import { Chart, setLimits, setSpan, showSamples } from "./charts.js";
import { byteRate, bytes, count, micros, percent, rate, seconds } from "./units.js";

const SPANS = [[300, "5 min"], [900, "15 min"], [3600, "1 hour"]];
const HOUR = 3610;
const KEY = "forebay-span";

const kept = { next: 0, times: [], series: {} };
const figures = {};

const line = (name, label, kind) => ({ name, label, kind });

function charts(parent) {
  new Chart(parent, "Requests", [
    line("read_requests", "reads", "read"),
    line("write_requests", "writes", "write"),
    line("flush_requests", "flushes", "flush"),
  ], rate);
  new Chart(parent, "Throughput", [
    line("read_bytes", "reads", "read"),
    line("write_bytes", "writes", "write"),
  ], byteRate, { binary: true, least: 4 << 20 });
  new Chart(parent, "Latency, logarithmic", [
    line("read_p50_us", "read p50", "read half"),
    line("read_p99_us", "read p99", "read"),
    line("write_p50_us", "write p50", "write half"),
    line("write_p99_us", "write p99", "write"),
    line("flush_p99_us", "flush p99", "flush"),
  ], micros, { log: true });
  new Chart(parent, "Dirty in the cache", [line("dirty_bytes", "dirty", "write")],
    bytes, { binary: true, least: 4 << 20, limits: ["dirty"] });
  new Chart(parent, "Lag of the pool's image", [line("lag_seconds", "lag", "other")],
    seconds, { limits: ["lag"] });
  new Chart(parent, "Write-back", [
    line("writeback_rate_bytes", "controller", "other half"),
    line("carried_bytes", "carried", "other"),
  ], byteRate, { binary: true, least: 4 << 20 });
  new Chart(parent, "Reads found in the cache", [line("hit_share", "hits", "read")],
    percent, { most: 1 });
  new Chart(parent, "Requests in flight", [line("in_flight", "in flight", "other")], count,
    { finest: 1 });
  new Chart(parent, "Scrub and moves", [
    line("scrub_bytes", "scrub", "flush"),
    line("moves_bytes", "moves", "other"),
  ], byteRate, { binary: true, least: 4 << 20 });
}

const FIGURES = [
  ["read_requests", "Reads", rate],
  ["write_requests", "Writes", rate],
  ["read_bytes", "Bytes read", byteRate],
  ["write_bytes", "Bytes written", byteRate],
  ["read_p99_us", "Read p99", micros],
  ["write_p99_us", "Write p99", micros],
  ["flush_p99_us", "Flush p99", micros],
  ["in_flight", "In flight", count],
  ["hit_share", "Cache hits", percent],
  ["dirty_bytes", "Dirty", bytes],
  ["lag_seconds", "Lag", seconds],
  ["pool_used_bytes", "Pool used", bytes],
];

export function begin() {
  for (const [name, label] of FIGURES) {
    const value = make("dd", {}, "–");
    figures[name] = value;
    byId("figures").append(make("div", {}, make("dt", {}, label), value));
  }
  const chosen = Number(sessionStorage.getItem(KEY)) || 3600;
  for (const [length, label] of SPANS) {
    const input = make("input", {
      type: "radio", name: "span", value: length, checked: length === chosen,
      on: { change: () => choose(length) },
    });
    byId("spans").append(make("label", {}, input, make("span", {}, label)));
  }
  setSpan(chosen);
  charts(byId("charts"));
}

function choose(length) {
  sessionStorage.setItem(KEY, length);
  setSpan(length);
}

// Takes what is new. `restarted`: the server is another one since the last time; what is known of
// the one before stays.
export async function refresh(restarted) {
  if (restarted) kept.next = 0;
  let answer = await ask("GET", `/v1/history?from=${kept.next}`);
  if (answer.next < kept.next) answer = await ask("GET", "/v1/history?from=0");
  const now = Date.now() / 1e3;
  const last = kept.times.at(-1) ?? 0;
  answer.seconds_ago.forEach((ago, at) => {
    if (now - ago <= last + answer.every_seconds / 2) return;
    kept.times.push(now - ago);
    for (const [name, values] of Object.entries(answer.series)) {
      (kept.series[name] ??= []).push(values[at]);
    }
  });
  kept.next = answer.next;
  const old = kept.times.findIndex((time) => time >= now - HOUR);
  const gone = old < 0 ? kept.times.length : old;
  kept.times.splice(0, gone);
  for (const values of Object.values(kept.series)) values.splice(0, gone);
  showSamples(kept.times, kept.series, answer.every_seconds);
  for (const [name, , format] of FIGURES) {
    const value = kept.series[name]?.at(-1);
    put(figures[name], format(value ?? undefined));
  }
}

// Limits of the charts, from the status.
export function update(status) {
  const writeback = status.cache?.writeback;
  setLimits({
    dirty: { value: writeback?.target, label: "target" },
    lag: { value: writeback?.max_lag_seconds, label: "max_lag" },
  });
  const late = writeback && writeback.lag_seconds > writeback.max_lag_seconds;
  mark(figures.lag_seconds, "class", late ? "warn" : null);
}
