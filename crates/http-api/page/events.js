// What happened: the last changes that the server has seen, the newest first.

import { byId, list, make, mark, put, show } from "./elements.js";
import { ask } from "./api.js";
import { bytes, clock, moment } from "./units.js";

const SHOWN = 50;
const DAY_MS = 86400000;

const kept = { since: 0, next: 0, all: [] };

// A state that has changed, of a thing that comes and goes.
function stateOf(thing, { from, to }, came, left) {
  if (from === null) return `${thing} ${came}: ${to}.`;
  if (to === null) return `${thing} ${left}.`;
  return `${thing} is ${to}, and was ${from}.`;
}

function sizeOf({ name, from, to }) {
  if (from === null) return `Volume ${name} was made, with ${bytes(to)}.`;
  if (to === null) return `Volume ${name} was deleted.`;
  return `Volume ${name} has ${bytes(to)}, and had ${bytes(from)}.`;
}

// A sentence for each kind of change.
const SENTENCES = {
  begin: () => "The server began to serve.",
  problem: (one) => (one.to === null ? `Over: ${one.from}.` : `Problem: ${one.to}.`),
  pool: (one) => stateOf("The pool", one, "came", "is gone"),
  device: (one) => stateOf(`Device ${one.name}`, one, "came into the pool", "left the pool"),
  cache: (one) => stateOf(`The cache ${one.name}`, one, "was attached", "was taken out"),
  scrub: ({ from, to }) => `The scrub is ${to}${from === "never" ? "" : `, and was ${from}`}.`,
  moves: ({ from, to }) => (to === "none" ? "Moves between devices have ended."
    : `Moves between devices: ${to}${from === "none" ? "" : `, before ${from}`}.`),
  job: (one) => stateOf(`Job ${one.name}`, one, "began", "is forgotten"),
  volume: sizeOf,
  "volume-mode": (one) => `Volume ${one.name} has the cache mode ${one.to}, and had ${one.from}.`,
  "volume-read-only": (one) =>
    `Clients may ${one.to ? "only read" : "read and change"} volume ${one.name}.`,
};

// The class of a change: what is wrong, and what is well again.
function kindOf({ what, to }) {
  if (what === "problem") return to === null ? "good" : "bad";
  return what === "job" && to === "failed" ? "bad" : null;
}

function create(one) {
  const [when, text] = [make("time"), make("span")];
  mark(when, "datetime", new Date(one.at * 1e3).toISOString());
  put(text, (SENTENCES[one.what] ?? (() => `${one.what} ${one.name}: ${one.to}.`))(one));
  mark(text, "class", kindOf(one));
  return { node: make("li", {}, when, text), when };
}

// The time of day is enough for what is of today.
function update_(row, one) {
  const at = new Date(one.at * 1e3);
  const today = Date.now() - at < DAY_MS && at.getDate() === new Date().getDate();
  put(row.when, today ? clock(at) : moment(one.at));
}

// Takes what is new. What was seen of a server before this one stays.
export async function refresh() {
  let answer = await ask("GET", `/v1/changes?from=${kept.next}`);
  if (answer.since !== kept.since) {
    answer = await ask("GET", "/v1/changes?from=0");
    kept.since = answer.since;
    const begin = { id: `${answer.since}`, what: "begin", at: answer.since };
    if (answer.since > 0) kept.all.unshift(begin);
  }
  const first = answer.next - answer.changes.length;
  const fresh = answer.changes.map((one, at) => ({ ...one, id: `${kept.since}/${first + at}` }));
  kept.next = answer.next;
  kept.all = [...fresh.reverse(), ...kept.all].slice(0, SHOWN);
  list(byId("event-list"), kept.all, (one) => one.id, create, update_);
  show(byId("events-none"), kept.all.length === 0);
}
