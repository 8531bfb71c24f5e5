// Volumes: what they are, what clients do with them, and what can be done with them.

import { byId, button, list, make, mark, put, show } from "./elements.js";
import { addressesOf } from "./addresses.js";
import { ask, volumePath } from "./api.js";
import { dialog, form } from "./dialogs.js";
import { byteRate, bytes, count, micros, parseCount, parseSize, percent, plural, rate, sizeText }
  from "./units.js";

const MODES = [
  ["writeback", "writeback: a write is done when the cache has it"],
  ["writethrough", "writethrough: a write is done when the pool has it too"],
  ["writearound", "writearound: writes go to the pool alone, reads are kept"],
  ["none", "none: reads and writes go past the cache"],
];
// So many are shown at first.
const FEW = 12;
// The order stays for so long, and while something in the table has focus or the pointer.
const ORDER_MS = 10000;

const state = {
  all: [], before: null, order: [], ordered: 0, everything: false, rated: false,
};

export function begin() {
  byId("create").addEventListener("click", askCreate);
  byId("filter").addEventListener("input", () => render(true));
  byId("sort").addEventListener("change", () => render(true));
  byId("more").addEventListener("click", () => {
    state.everything = !state.everything;
    render(true);
  });
}

const sizeHint = "Such as 100G or 1.5T; powers of 1024.";

function askCreate() {
  dialog("Create a volume", [form({
    verb: "Create",
    fields: [
      { name: "name", label: "Name" },
      { name: "size", label: "Size", hint: sizeHint },
      { name: "sector", label: "Sector", options: [["512", "512 B"], ["4096", "4096 B"]] },
    ],
    act: ({ name, size, sector }) => ask("POST", "/v1/volumes", {
      name, size_bytes: parseSize(size), sector_bytes: Number(sector),
    }),
    done: ({ name }) => `${name} is there.`,
  })]);
}

function limitText(limit) {
  if (!limit) return "none";
  const parts = [];
  if (limit.iops) parts.push(rate(limit.iops));
  if (limit.bytes_per_second) parts.push(byteRate(limit.bytes_per_second));
  return parts.join(", ") || "none";
}

// One dialog for all that can be done with a volume.
function askChange(name) {
  const volume = state.all.find((one) => one.name === name);
  if (!volume) return;
  const limit = volume.limit ?? {};
  // Smaller sizes that were asked for once.
  const confirmed = new Set();
  const resize = form({
    title: "Size", verb: "Resize",
    notes: ["A smaller size cuts off what is behind it, for good."],
    fields: [
      { name: "size", label: "New size", value: sizeText(volume.size_bytes), hint: sizeHint },
    ],
    act: ({ size }) => {
      const wanted = parseSize(size);
      if (wanted < volume.size_bytes && !confirmed.has(wanted)) {
        confirmed.add(wanted);
        throw new Error(`This cuts off ${bytes(volume.size_bytes - wanted)} and all data in it. ` +
          "Press Resize again to do it.");
      }
      return ask("PATCH", volumePath(name), {
        size_bytes: wanted, shrink: confirmed.has(wanted),
      });
    },
    done: ({ size }) => `${name} has ${size} now.`,
  });
  const mode = form({
    title: "Cache mode", verb: "Set mode",
    fields: [{ name: "mode", label: "Mode", options: MODES, value: volume.cache_mode }],
    act: (given) => ask("PUT", volumePath(name, "/mode"), given),
    done: (given) => `The mode of ${name} is ${given.mode}.`,
  });
  const limits = form({
    title: "Limit", verb: "Set limit",
    fields: [
      { name: "iops", label: "Requests a second", value: limit.iops ?? 0, hint: "0: no limit" },
      {
        name: "bytes_per_second", label: "Bytes a second", hint: "Such as 50M. 0: no limit",
        value: sizeText(limit.bytes_per_second ?? 0),
      },
    ],
    act: ({ iops, bytes_per_second }) => ask("PUT", volumePath(name, "/limit"), {
      iops: parseCount(iops), bytes_per_second: parseSize(bytes_per_second),
    }),
    done: () => `The limit of ${name} is set.`,
  });
  const access = form({
    title: "Writes", verb: "Set",
    notes: ["Clients that are connected are held to it at once."],
    fields: [{
      name: "read_only", label: "Clients", value: String(volume.read_only),
      options: [["false", "may change the volume"], ["true", "may only read it"]],
    }],
    act: (given) => ask("PUT", volumePath(name, "/read-only"), {
      read_only: given.read_only === "true",
    }),
    done: (given) => `Clients may ${given.read_only === "true" ? "only read" : "change"} ${name}.`,
  });
  const remove = make("section", {}, make("h3", {}, "Delete"),
    make("p", {}, "All of its data is gone then."),
    make("div", { class: "buttons" }, button("Delete…", () => {
      whole.close();
      askDelete(name);
    }, { class: "danger" })));
  const addresses = addressesOf(name);
  const forms = [...(addresses ? [addresses] : []), resize, mode, limits, access, remove];
  const whole = dialog(`Volume ${name}`, forms, { close: "Close" });
}

function askDelete(name) {
  dialog(`Delete ${name}`, [form({
    notes: [`All data of the volume is gone for good. Type its name to confirm: ${name}`],
    verb: "Delete", danger: true,
    fields: [{ name: "name", label: "Name of the volume" }],
    check: (given) => given.name === name,
    act: () => ask("DELETE", volumePath(name)),
    done: () => `${name} is deleted.`,
  })]);
}

// What clients do in each second since the last status.
function work(volume, time) {
  const then = state.before?.by.get(volume.name)?.requests;
  const now = volume.requests;
  if (!then || !now || time <= 0) return { busy: 0 };
  const grown = (kind, what) => Math.max(0, (now[kind]?.[what] ?? 0) - (then[kind]?.[what] ?? 0));
  const kinds = Object.keys(now);
  const ended = kinds.reduce((sum, kind) => sum + grown(kind, "count"), 0);
  const us = kinds.reduce((sum, kind) => sum + grown(kind, "latency_sum_us"), 0);
  const moved = grown("read", "bytes") + grown("write", "bytes");
  return {
    reads: grown("read", "count") / time,
    writes: grown("write", "count") / time,
    moved: moved / time,
    mean: ended > 0 ? us / ended : undefined,
    busy: ended / time,
  };
}

const COLUMNS = [
  "Mode", "Size", "Stored", "Reads", "Writes", "Bytes", "Mean time", "Hits", "Limit",
];

function create(volume) {
  const cells = COLUMNS.map((label) => make("td", { "data-label": label }));
  const name = make("th", { scope: "row" }, volume.name);
  const change = button("Change…", () => askChange(volume.name), {
    "aria-label": `Change ${volume.name}`,
  });
  return { cells, node: make("tr", {}, name, ...cells, make("td", { class: "acts" }, change)) };
}

function update_(row, volume) {
  const { done, hits } = volume;
  const texts = [
    volume.cache_mode + (volume.read_only ? ", read-only" : ""),
    bytes(volume.size_bytes), bytes(volume.allocated_bytes),
    rate(done.reads), rate(done.writes), byteRate(done.moved), micros(done.mean),
    percent(hits), limitText(volume.limit),
  ];
  texts.forEach((text, at) => put(row.cells[at], text));
  mark(row.node, "class", done.busy > 0 ? "busy" : null);
}

function sorted(volumes) {
  const by = byId("sort").value;
  const compare = {
    busy: (a, b) => b.smooth - a.smooth,
    size: (a, b) => b.size_bytes - a.size_bytes,
    stored: (a, b) => b.allocated_bytes - a.allocated_bytes,
    name: () => 0,
  }[by];
  const names = (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true });
  return [...volumes].sort((a, b) => compare(a, b) || names(a, b)).map((one) => one.name);
}

function render(anew) {
  const table = byId("volume-table");
  const held = table.contains(document.activeElement) || table.matches(":hover");
  const due = performance.now() - state.ordered > ORDER_MS && !held;
  if (anew || due || state.order.length === 0) {
    state.order = sorted(state.all);
    state.ordered = performance.now();
  }
  const known = new Map(state.all.map((one) => [one.name, one]));
  const old = new Set(state.order);
  // New ones come first: they were just made.
  const fresh = state.all.filter((one) => !old.has(one.name)).map((one) => one.name);
  state.order = [...fresh, ...state.order].filter((name) => known.has(name));
  const filter = byId("filter").value.trim().toLowerCase();
  const wanted = state.order.filter((name) => name.toLowerCase().includes(filter));
  const shown = state.everything ? wanted : wanted.slice(0, FEW);
  list(byId("volume-rows"), shown.map((name) => known.get(name)), (one) => one.name, create,
    update_);
  const all = wanted.length === state.all.length
    ? plural(wanted.length, "volume") : `${count(wanted.length)} of ${count(state.all.length)}`;
  put(byId("volume-count"), shown.length < wanted.length ? `${shown.length} of ${all}` : all);
  show(byId("more"), wanted.length > FEW);
  put(byId("more"), state.everything ? `Show ${FEW}` : `Show all ${count(wanted.length)}`);
  show(byId("volumes-none"), state.all.length === 0);
}

export function update(status) {
  const now = performance.now();
  const time = (now - (state.before?.at ?? now)) / 1e3;
  const hits = new Map((status.cache?.hit_ratio.volumes ?? []).map((one) => [one.name, one]));
  state.all = status.volumes.map((volume) => {
    const done = work(volume, time);
    const smooth = (state.before?.by.get(volume.name)?.smooth ?? 0) * 0.7 + done.busy * 0.3;
    return { ...volume, done, smooth, hits: hits.get(volume.name)?.last_minute };
  });
  state.before = { at: now, by: new Map(state.all.map((one) => [one.name, one])) };
  const list_ = byId("volume-names");
  list(list_, state.all, (one) => one.name,
    (one) => ({ node: make("option", { value: one.name }) }), () => {});
  // With the second status there are rates to order by.
  const rated = time > 0 && !state.rated;
  state.rated ||= rated;
  render(rated);
}
