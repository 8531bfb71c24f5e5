// What is served, whether it is healthy, and what to do if not.

import { byId, button, list, make, mark, put, show } from "./elements.js";
import { showAdvice } from "./advice.js";
import { askOnline } from "./devices.js";
import { askScrub, resumeMoves, resumeScrub } from "./jobs.js";
import { bytes, count, plural, span } from "./units.js";

// What can be done at once about some problems, as the server names it.
const ACTIONS = {
  "scrub-resume": ["Resume the scrub", resumeScrub],
  "scrub-start": ["Start a scrub…", askScrub],
  "moves-resume": ["Resume the moves", resumeMoves],
  "device-online": ["Take into use…", (one) => askOnline(one.device)],
};

function problem(one) {
  const [what, todo] = [make("strong"), make("p")];
  const labelled = (text, act) => button(text, act, { "aria-label": `${text} (${one.page})` });
  const buttons = make("div", { class: "buttons" },
    labelled("What to do", () => showAdvice(one.page)));
  if (one.action in ACTIONS) {
    const [text, act] = ACTIONS[one.action];
    buttons.append(labelled(text, () => act(one)));
  }
  return { node: make("li", {}, what, todo, buttons), what, todo };
}

// A key for each problem, that stays while numbers in its text grow.
function keyed(problems) {
  const seen = new Map();
  return problems.map((one) => {
    const same = `${one.page} ${one.device} ${one.action}`;
    seen.set(same, (seen.get(same) ?? 0) + 1);
    return { ...one, key: `${same} ${seen.get(same)}` };
  });
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
  list(byId("problems"), keyed(problems), (one) => one.key, problem, (row, one) => {
    put(row.what, one.what);
    put(row.todo, `To do: ${one.todo}`);
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
