// What is served, whether it is healthy, and what to do if not.

import { byId, list, make, mark, put, show } from "./elements.js";
import { bytes, count, plural, span } from "./units.js";

function problem() {
  const [what, todo, page] = [make("strong"), make("p"), make("p", { class: "hint" })];
  return { node: make("li", {}, what, todo, page), what, todo, page };
}

export function update(status) {
  const { pool, server, volumes, admission } = status;
  const problems = status.health ?? [];
  const place = byId("health");
  mark(place, "class", problems.length > 0 ? "band bad" : "band good");
  const head = problems.length === 0
    ? "Nothing is wrong."
    : plural(problems.length, "problem") + (problems.length > 1 ? ", the worst first" : "");
  put(byId("verdict"), head);
  list(byId("problems"), problems, (one) => one.page + one.what, problem, (row, one) => {
    put(row.what, one.what);
    put(row.todo, `To do: ${one.todo}`);
    put(row.page, `More in docs/operations.md, section ${one.page}`);
  });
  put(byId("pool-name"), `pool ${pool.name}`);
  put(byId("pool-state"), pool.state);
  mark(byId("pool-state"), "class", `badge ${pool.state === "online" ? "good" : "bad"}`);
  const waiting = admission?.waiting > 0 ? `, ${count(admission.waiting)} requests wait` : "";
  const facts = [
    plural(volumes.length, "volume"),
    `${plural(server.connections, "client connection")}${waiting}`,
    `${bytes(pool.used_bytes)} of ${bytes(pool.capacity_bytes)} used, ` +
      `${bytes(pool.available_bytes)} left for data`,
    pool.copies === 1 ? "one copy of each block" : `${pool.copies} copies of each block`,
    `up ${span(server.uptime_seconds)}`,
    `version ${server.version}, ${server.io_backend}, ${bytes(server.resident_bytes)} resident`,
  ];
  list(byId("served"), facts.map((text, at) => ({ text, at })), (fact) => fact.at,
    () => ({ node: make("li") }), (row, fact) => put(row.node, fact.text));
  const state = problems.length === 0 ? "ok" : plural(problems.length, "problem");
  document.title = `${state} – ${pool.name} – Forebay`;
}

let isLost = false;

// The last status is so old, and the next one has not come.
export function late(seconds) {
  if (isLost) return;
  put(byId("live"), `status of ${seconds} s ago`);
  mark(byId("live"), "class", "live warn");
}

// The server answers, or not: what is shown is then of `since`, and it is asked again in `wait`
// seconds.
export function connection(lost) {
  const place = byId("connection");
  const line = byId("live");
  isLost = lost !== null;
  show(place, lost !== null);
  mark(document.body, "class", lost === null ? null : "lost");
  put(line, lost === null ? "live" : "no answer");
  mark(line, "class", lost === null ? "live good" : "live bad");
  if (lost === null) return;
  const again = lost.wait > 0 ? `Trying again in ${lost.wait} s.` : "Trying again.";
  const why = lost.why[0].toUpperCase() + lost.why.slice(1);
  const shown = lost.since ? ` What is shown is from ${lost.since}.` : "";
  put(byId("connection-text"), `${why}.${shown}`);
  put(byId("connection-wait"), again);
  document.title = "no answer – Forebay";
}
