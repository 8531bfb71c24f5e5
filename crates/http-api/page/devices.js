// The devices of the pool and that of the cache: their states, their room, their errors, and what
// they do now.

import { byId, button, list, make, mark, put, show } from "./elements.js";
import { ask } from "./api.js";
import { dialog, form } from "./dialogs.js";
import { byteRate, bytes, count, micros, parseSize, percent, plural } from "./units.js";

const ERRORS = ["read", "write", "checksum"];
// States in which nothing is wrong.
const WELL = ["online", "spare", "leaving", "joining", "behind", "serving"];
// Those from which it may be taken into use again.
const OUT = ["offline", "flapping", "failed", "stale"];

let before = null;
let last = null;

export function begin() {
  byId("add-device").addEventListener("click", askAdd);
  byId("rebalance").addEventListener("click", askRebalance);
  byId("copies").addEventListener("click", askCopies);
}

const path = {
  name: "device", label: "Path", hint: "A file or block device that is there, as the server sees " +
    "it.",
};
const force = {
  name: "force", label: "What it holds",
  options: [["", "is kept: refuse what is not empty"], ["yes", "may be overwritten"]],
};

// What a form for a new device says of it.
const added = ({ device, force }) => ({ device: device.trim(), force: force === "yes" });

function askAdd() {
  dialog("Add a device", [form({
    notes: ["What it holds is lost. A spare that is named here is used as the others from now on."],
    verb: "Add",
    fields: [
      path, force,
      {
        name: "spare", label: "Use",
        options: [["", "for data, from now on"], ["yes", "as a spare, for one that fails"]],
      },
    ],
    act: (given) => ask("POST", "/v1/devices", { ...added(given), spare: given.spare === "yes" }),
    done: ({ device }) => `${device.trim()} is a device of the pool.`,
  })]);
}

function askRebalance() {
  dialog("Rebalance", [form({
    notes: ["Data is moved until all devices are filled to the same share. Moves show below, and " +
            "can be paused and cancelled."],
    verb: "Rebalance", fields: [],
    act: () => ask("POST", "/v1/devices/rebalance"),
    done: () => "Devices are being filled to the same share.",
  })]);
}

function askCopies() {
  const now = last?.pool.copies ?? 1;
  dialog("Copies of every block", [form({
    notes: [`Now: ${now}. More copies are made in the background; fewer free room at once.`],
    verb: "Set",
    fields: [{
      name: "copies", label: "Copies", value: String(now),
      options: [["1", "1: no device may fail"], ["2", "2: one may"], ["3", "3: two may"]],
    }],
    act: ({ copies }) => ask("PUT", "/v1/pool/copies", { copies: Number(copies) }),
    done: ({ copies }) => `Every block has ${copies} copies, or will have.`,
  })]);
}

const devicePath = (device, below = "") => `/v1/devices/${encodeURIComponent(device.id)}${below}`;

// One dialog for all that can be done with a device, besides taking it into use and out of it.
function askChange(device) {
  const name = device.path || device.id;
  const replace = form({
    title: "Replace", verb: "Replace",
    notes: ["All that it holds moves to the new one, while the pool serves. Then it is removed."],
    fields: [path, force],
    act: (given) => ask("POST", "/v1/devices", { ...added(given), replaces: device.id }),
    done: (given) => `${given.device.trim()} takes the place of ${name}.`,
  });
  const grow = form({
    title: "Grow", verb: "Grow",
    notes: [`The pool uses ${bytes(device.size)} of it.`],
    fields: [{
      name: "size", label: "Bytes to use", hint: "Such as 200G. Empty: all that it has now.",
    }],
    act: ({ size }) => ask("PUT", devicePath(device, "/size"),
      size.trim() ? { size_bytes: parseSize(size) } : {}),
    done: () => `${name} has grown.`,
  });
  const remove = form({
    title: "Remove", verb: "Remove", danger: true,
    notes: ["All that it holds moves to the others, and it leaves the pool. To confirm, type its " +
            `path: ${name}`],
    fields: [{ name: "name", label: "Path of the device" }],
    check: (given) => given.name === name,
    act: () => ask("DELETE", devicePath(device)),
    done: () => `${name} is being removed.`,
  });
  dialog(`Device ${name}`, [replace, grow, remove], { close: "Close" });
}

// The sum over all classes of I/O.
function totals(queue) {
  const sum = { readBytes: 0, writeBytes: 0, inFlight: 0, count: 0, us: 0 };
  for (const io of Object.values(queue?.io ?? {})) {
    sum.readBytes += io.read.bytes;
    sum.writeBytes += io.write.bytes;
    sum.inFlight += io.in_flight;
    for (const kind of [io.read, io.write, io.flush]) {
      sum.count += kind.count;
      sum.us += kind.latency_sum_us;
    }
  }
  return sum;
}

// What was done in each second since the last time.
function work(id, sum, now) {
  const then = before?.sums.get(id);
  const time = (now - (before?.at ?? now)) / 1e3;
  if (!then || time <= 0 || sum.count < then.count) return null;
  const ended = sum.count - then.count;
  return {
    read: (sum.readBytes - then.readBytes) / time,
    write: (sum.writeBytes - then.writeBytes) / time,
    mean: ended > 0 ? (sum.us - then.us) / ended : undefined,
  };
}

function create(device) {
  const cell = (label) => make("td", { "data-label": label });
  const path = make("th", { scope: "row" });
  const meter = make("meter", { min: 0, max: 1, high: 0.9 });
  const filled = make("span");
  const row = {
    path,
    state: cell("State"),
    used: cell("Used"),
    errors: cell("Errors"),
    read: cell("Reads"),
    write: cell("Writes"),
    mean: cell("Mean time"),
    flight: cell("In flight"),
    acts: make("td", { class: "acts" }),
    meter,
    filled,
  };
  row.used.append(filled, meter);
  row.toggle = button("", () => askToggle(row.device));
  row.change = button("Change…", () => askChange(row.device), {
    "aria-label": `Change ${device.path || device.id}`,
  });
  if (device.id !== "cache") row.acts.append(row.toggle, row.change);
  const { state, used, errors, read, write, mean, flight, acts } = row;
  row.node = make("tr", {}, path, state, used, errors, read, write, mean, flight, acts);
  return row;
}

function askToggle(device) {
  const on = !OUT.includes(device.state);
  const name = device.path || device.id;
  const verb = on ? "Take out of use" : "Take into use";
  const notes = on
    ? ["Its copies are neither read nor written until it is taken into use again. Then what it " +
       "missed is brought to it."]
    : ["It is looked at, and what it missed is brought to it."];
  dialog(`${verb}: ${name}`, [form({
    notes, verb, fields: [], danger: on,
    act: () => ask("POST", devicePath(device, on ? "/offline" : "/online")),
    done: () => `${name} is taken ${on ? "out of" : "into"} use.`,
  })]);
}

// Asks whether the device of this id may be used again.
export function askOnline(id) {
  const device = last?.pool.devices.find((one) => one.id === id);
  if (device && OUT.includes(device.state)) askToggle(device);
}

function stateText(device) {
  const more = [];
  if (device.emulate) more.push(`emulating ${device.emulate}`);
  if (device.sits_out) more.push(`${device.sits_out.why}: read only where it must be`);
  if (device.spare?.path) more.push(`spare: ${device.spare.path}`);
  return [device.state, ...more].join(", ");
}

function update_(row, device, now, sums) {
  row.device = device;
  put(row.path, device.path || `device ${device.id}`);
  put(row.state, stateText(device));
  const bad = !WELL.includes(device.state);
  mark(row.state, "class", bad ? "bad" : device.sits_out ? "warn" : "good");
  const share = device.used / Math.max(1, device.size);
  row.meter.value = share;
  mark(row.meter, "aria-label", percent(share));
  put(row.filled, `${bytes(device.used)} of ${bytes(device.size)}`);
  const errors = device.errors ?? {};
  const found = ERRORS.filter((kind) => errors[kind] > 0);
  const text = found.map((kind) => `${count(errors[kind])} ${kind}`);
  if (errors.healed > 0) text.push(`${count(errors.healed)} healed`);
  put(row.errors, text.length > 0 ? text.join(", ") : "none");
  mark(row.errors, "class", found.length > 0 ? "bad" : null);
  const sum = totals(device.queue);
  sums.set(device.id, sum);
  const done = work(device.id, sum, now);
  put(row.read, byteRate(done?.read));
  put(row.write, byteRate(done?.write));
  put(row.mean, micros(done?.mean));
  const waiting = device.queue?.waiting ?? 0;
  put(row.flight, waiting > 0 ? `${sum.inFlight}, ${count(waiting)} wait` : String(sum.inFlight));
  put(row.toggle, OUT.includes(device.state) ? "Online…" : "Offline…");
  show(row.toggle, OUT.includes(device.state) || ["online", "behind"].includes(device.state));
}

export function update(status) {
  const { pool, cache } = status;
  last = status;
  const now = performance.now();
  const all = pool.devices.map((device) => ({
    ...device, used: device.allocated_bytes, size: device.capacity_bytes,
  }));
  if (cache) {
    const used = cache.dirty_bytes + cache.clean_bytes;
    const errors = { checksum: (cache.refetched ?? 0) + cache.bad_blocks.length };
    all.push({
      id: "cache", path: `${cache.path} (cache)`, state: cache.state, used, errors,
      size: cache.size_bytes, queue: cache.queue,
    });
  }
  const sums = new Map();
  list(byId("device-rows"), all, (one) => one.id, create,
    (row, device) => update_(row, device, now, sums));
  before = { at: now, sums };
  const lost = pool.scrub?.lost_blocks ?? [];
  const more = pool.scrub?.more_lost ?? false;
  show(byId("lost"), lost.length > 0 || more);
  put(byId("lost"), `${plural(lost.length, "range")} of volumes without a good copy: ` +
    lost.slice(0, 5).map((one) => `${one.volume} at ${one.offset}`).join(", ") +
    (more ? " and more: run a scrub when these are mended" : ""));
}
