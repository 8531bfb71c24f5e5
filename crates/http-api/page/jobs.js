// Long work: the scrub, moves between devices, and the jobs of the API.

import { byId, button, list, make, mark, put, show } from "./elements.js";
import { ask } from "./api.js";
import { attempt, dialog, form } from "./dialogs.js";
import { byteRate, bytes, count, moment, parseSize, percent, plural, span } from "./units.js";

const SHOWN = 8;
const NAMES = {
  "cache-flush": "Flush of the cache",
  "cache-detach": "Detaching the cache",
  "cache-mode": "Change of a cache mode",
  gc: "Garbage collection",
};

let last = null;

const post = (path, fields) => () => ask("POST", path, fields);

export const resumeScrub = () => attempt("The scrub goes on.", post("/v1/scrub/resume", {}));
export const resumeMoves = () => attempt("Moves go on.", post("/v1/moves/resume"));

const ACTS = {
  start: ["Start a scrub…", () => askScrub()],
  pause: ["Pause", () => attempt("The scrub rests.", post("/v1/scrub/pause"))],
  resume: ["Resume", resumeScrub],
  cancel: ["Cancel", () => attempt("The scrub has ended.", post("/v1/scrub/cancel"))],
  "moves-pause": ["Pause", () => attempt("Moves rest.", post("/v1/moves/pause"))],
  "moves-resume": ["Resume", resumeMoves],
  "moves-cancel": ["Cancel…", () => askCancelMoves()],
};

export function askScrub() {
  const devices = (last?.pool.devices ?? []).filter((one) => one.path);
  const options = [["", "all devices"], ...devices.map((one) => [one.path, one.path])];
  dialog("Start a scrub", [form({
    notes: ["Every copy of every block is read and verified. What is bad is healed from a good " +
            "copy."],
    verb: "Start",
    fields: [
      { name: "device", label: "Device", options },
      {
        name: "rate", label: "Bytes a second of each copy at most",
        hint: "Such as 100M. Empty: no limit.",
      },
    ],
    act: ({ device, rate }) => ask("POST", "/v1/scrub", {
      ...(device ? { device } : {}), ...(rate.trim() ? { rate: parseSize(rate) } : {}),
    }),
    done: () => "The scrub has begun.",
  })]);
}

function askCancelMoves() {
  dialog("Cancel moves", [form({
    notes: ["Devices that are about to be removed stay in the pool."],
    verb: "Cancel the moves", fields: [], danger: true,
    act: post("/v1/moves/cancel"),
    done: () => "Moves are cancelled.",
  })]);
}

function create() {
  const [name, state] = [make("strong"), make("span", { class: "badge" })];
  const [text, buttons] = [make("p"), make("div", { class: "buttons" })];
  const bar = make("progress", { max: 1 });
  const head = make("div", { class: "head" }, name, state, buttons);
  return { node: make("li", {}, head, bar, text), name, state, text, bar, buttons, acts: {} };
}

function update_(row, job) {
  put(row.name, job.name);
  put(row.state, job.state);
  mark(row.state, "class", `badge ${job.kind ?? ""}`);
  put(row.text, job.text);
  show(row.bar, job.progress !== undefined);
  if (job.progress === null) row.bar.removeAttribute("value");
  else if (job.progress !== undefined) row.bar.value = job.progress;
  mark(row.bar, "aria-label", job.name);
  const known = (job.acts ?? []).map((id) => ({ id, text: ACTS[id][0], act: ACTS[id][1] }));
  list(row.buttons, [...known, ...(job.own ?? [])], (one) => one.id, (one) => ({
    node: button(one.text, one.act, { "aria-label": `${one.text} (${job.name})` }),
  }), () => {});
}

// What the cache's part of a scrub does, and has found.
function scrubOfCache(part) {
  if (!part || part.state === "never") return "";
  const all = part.all_bytes > 0 ? part.verified_bytes / part.all_bytes : 1;
  const facts = [`The cache: ${part.state}, ${percent(Math.min(1, all))}`];
  if (part.dropped > 0) facts.push(`${count(part.dropped)} bad and dropped`);
  if (part.lost > 0) facts.push(`${count(part.lost)} lost`);
  return ` ${facts.join(", ")}.`;
}

function scrub(s, part) {
  const share = s.all_bytes > 0 ? Math.min(1, s.verified_bytes / s.all_bytes) : 0;
  const copies = `${plural(s.bad, "bad copy", "bad copies")} of blocks, ${count(s.healed)} healed`;
  const found = s.bad + s.lost === 0 ? "no errors" : copies;
  const blocks = s.lost - s.passed_over;
  let lost = blocks > 0 ? `, ${plural(blocks, "block")} lost` : "";
  if (s.passed_over > 0) lost += `, ${plural(s.passed_over, "part")} of the pool passed over`;
  const only = s.device ? ` of ${s.device} alone` : "";
  const under = s.state === "running" || s.state === "paused";
  const facts = [`${percent(share)}, ${bytes(s.verified_bytes)} of ${bytes(s.all_bytes)}${only}`];
  if (s.state === "running" && s.rate > 0) facts.push(byteRate(s.rate));
  if (s.state === "running" && s.left_s !== null) facts.push(`${span(s.left_s)} left`);
  if (s.rate_limit > 0) facts.push(`${byteRate(s.rate_limit)} of each copy at most`);
  facts.push(found + lost);
  const what = part && part.state !== "never" ? "The pool's part" : "It";
  let text = `${facts.join(", ")}.`;
  if (s.state === "never") text = "There was no scrub yet.";
  else if (!under) text = `${what} ended ${moment(s.ended_at)}: ${found}${lost}.`;
  if (s.away) text += " A device of the pool was out of use: it does not count as complete.";
  text += scrubOfCache(part);
  const acts = { running: ["pause", "cancel"], paused: ["resume", "cancel"] };
  // The cache's part may outlast the pool's.
  const state = !under && part?.state in acts ? part.state : s.state;
  const bad = s.lost > 0 || s.bad > s.healed || part?.lost > 0;
  return {
    id: "scrub", name: "Scrub", state, kind: bad ? "bad" : state in acts ? "busy" : "", text,
    progress: under ? share : undefined, acts: acts[state] ?? ["start"],
  };
}

function moves(m) {
  if (m.state === "none") {
    if (!m.ended || m.copied_bytes === 0) return [];
    const text = `It ended ${moment(m.ended.ended_at)}: ${bytes(m.ended.copied_bytes)} copied.`;
    const kind = m.ended.outcome === "done" ? "good" : "";
    return [{ id: "moves", name: "Moves between devices", state: m.ended.outcome, kind, text }];
  }
  const most = m.behind.length > 0 ? "at most " : "";
  const facts = [`${most}${bytes(m.left_bytes)} left, ${bytes(m.copied_bytes)} copied`];
  if (m.leaving.length > 0) facts.push(`${m.leaving.join(", ")} will be removed`);
  if (m.behind.length > 0) facts.push(`${m.behind.join(", ")} is brought up to date`);
  if (m.rate > 0) facts.push(byteRate(m.rate));
  if (m.left_s !== null) facts.push(`${span(m.left_s)} left`);
  if (m.trouble) facts.push(m.trouble);
  const all = m.left_bytes + m.copied_bytes;
  return [{
    id: "moves", name: "Moves between devices", state: m.state,
    kind: m.state === "waiting" ? "bad" : "busy", text: `${facts.join("; ")}.`,
    progress: all > 0 ? m.copied_bytes / all : null,
    acts: [m.state === "paused" ? "moves-resume" : "moves-pause", "moves-cancel"],
  }];
}

function ofApi(job) {
  const kind = { running: "busy", failed: "bad", done: "good" }[job.state];
  let text = `It took ${span(job.seconds)}.`;
  if (job.state === "failed") text = `${job.error.message}, after ${span(job.seconds)}.`;
  if (job.state === "cancelled") text = `After ${span(job.seconds)}.`;
  const name = `${NAMES[job.request] ?? job.request} (job ${job.job})`;
  const cancel = () => ask("DELETE", `/v1/jobs/${job.job}`);
  if (job.state !== "running") return { id: job.job, name, state: job.state, kind, text };
  text = `For ${span(job.seconds)}.`;
  const { done_bytes: done = 0, total_bytes: total = 0 } = job.progress ?? {};
  if (job.progress) text += ` ${bytes(done)} of ${bytes(total)} are written back.`;
  return {
    id: job.job, name, state: job.state, kind, text, progress: total > 0 ? done / total : null,
    // Where it is too late the server says why.
    own: [{
      id: "cancel", text: "Cancel",
      act: () => attempt(`Job ${job.job} is cancelled.`, cancel),
    }],
  };
}

export function update(status, jobs) {
  last = status;
  const rest = status.commit;
  const latest = [...jobs].reverse();
  const running = latest.filter((job) => job.state === "running");
  const ended = latest.filter((job) => job.state !== "running");
  const shown = [...running, ...ended].slice(0, SHOWN);
  const all = [
    scrub(status.pool.scrub, status.cache?.scrub_part), ...moves(status.pool.moves),
    ...shown.map(ofApi),
  ];
  list(byId("job-list"), all, (job) => job.id, create, update_);
  put(byId("commits"), `Commits of the pool: ${count(rest.count)}` +
    (rest.failed > 0 ? `, ${count(rest.failed)} failed.` : ", none failed."));
  mark(byId("commits"), "class", rest.failed > 0 ? "bad" : "hint");
}
