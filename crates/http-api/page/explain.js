// Why requests were slow: a verdict in plain words, what their time was made of, the slowest ones.

import { byId, draw, make, put, show } from "./elements.js";
import { ask } from "./api.js";
import { bytes, count, micros, plural, span } from "./units.js";

const LAYERS = ["client", "volume", "engine", "cache", "pool", "device", "host"];
const PARTS = 3;

// Paths of all devices.
let paths = [];

export function begin() {
  const form = byId("explain-form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    refresh();
  });
  form.addEventListener("change", () => refresh());
}

// A device without its directory, where no other has the same name.
function short(device) {
  const base = (text) => text.slice(text.lastIndexOf("/") + 1);
  const path = paths.find((one) => device.endsWith(` ${one}`));
  if (!path || paths.filter((one) => base(one) === base(path)).length > 1) return device;
  return device.slice(0, -path.length) + base(path);
}

// Parts of the same stage at the same device as one, the longest first.
function groups(parts) {
  const found = new Map();
  for (const part of parts) {
    const key = `${part.stage} ${part.device}`;
    const group = found.get(key) ?? { ...part, us: 0, most: 0 };
    if (part.us > group.most) Object.assign(group, { most: part.us, holder: part.holder });
    group.us += part.us;
    found.set(key, group);
  }
  return [...found.values()].sort((a, b) => b.us - a.us);
}

// What a part is: `device transfer of cache device a.img, mostly beside write-back`.
function name(part) {
  const stage = part.stage.replaceAll("_", " ").replace("/", ": ");
  const device = part.device ? ` of ${short(part.device)}` : "";
  return `${stage}${device}${part.holder ? `, mostly beside ${part.holder}` : ""}`;
}

// Shares of the layers as a bar.
function bar(parts) {
  const whole = parts.reduce((sum, part) => sum + part.us, 0) || 1;
  const picture = draw("svg", {
    class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", "aria-hidden": "true",
  });
  let from = 0;
  for (const layer of LAYERS) {
    const us = parts.filter((part) => part.layer === layer).reduce((sum, p) => sum + p.us, 0);
    const width = (us / whole) * 1000;
    if (width > 0) {
      const place = { x: from.toFixed(1), y: 0, width: width.toFixed(1), height: 10 };
      picture.append(draw("rect", { class: `fill ${layer}`, ...place }));
    }
    from += width;
  }
  return picture;
}

function layers(classes) {
  const parts = classes.flatMap((one) => one.percentiles.flatMap((p) => p.mean_parts));
  const there = LAYERS.filter((layer) => parts.some((part) => part.layer === layer));
  const items = there.map((layer) => make("li", {},
    draw("svg", { class: "swatch", width: 10, height: 10, "aria-hidden": "true" },
      draw("rect", { class: `fill ${layer}`, width: 10, height: 10 })),
    make("span", {}, layer)));
  return make("ul", { class: "legend" }, ...items);
}

function largest(parts) {
  const all = groups(parts);
  const texts = all.slice(0, PARTS).map((part) => `${micros(part.us)} ${name(part)}`);
  const rest = all.slice(PARTS).reduce((sum, part) => sum + part.us, 0);
  return texts.join("; ") + (rest >= 1 ? `; ${micros(rest)} others` : "");
}

function ofClass(one) {
  const rows = one.percentiles.map((p) => make("tr", {},
    make("th", { scope: "row" }, p.share === 1 ? "longest" : `${p.share * 100} %`),
    make("td", { "data-label": "Up to", class: "number" }, micros(p.us)),
    make("td", { "data-label": "Made of", class: "made" },
      make("span", {}, largest(p.mean_parts)), bar(p.mean_parts))));
  const causes = one.causes.slice(0, 6).map((cause) =>
    make("li", {}, `${plural(cause.requests, "request")} waited mostly for ${cause.text}.`));
  const more = one.causes.length > 1
    ? [make("details", {}, make("summary", {}, "All causes"), make("ul", {}, ...causes))] : [];
  const heads = ["Of all", "Up to", "Made of"].map((text) => make("th", { scope: "col" }, text));
  return make("article", {},
    make("h3", {}, `${one.class} (${count(one.requests)})`),
    make("p", { class: "verdict" }, one.verdict),
    make("div", { class: "scroll" }, make("table", { class: "cards" },
      make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows))),
    ...more);
}

function volumeOf(one) {
  if (one.volume !== null) return ` of ${one.volume}`;
  return one.volume_id === null ? "" : ` of a deleted volume (${one.volume_id})`;
}

function slow(one) {
  const parts = one.parts.map((part) => make("li", {}, `${micros(part.us)}: ${part.text}`));
  const text = `${micros(one.duration_us)}, ${one.class}${volumeOf(one)}, ` +
    `${bytes(one.length_bytes)} at ${count(one.offset)}, ${span(one.ended_seconds_ago)} ago`;
  return make("li", {}, make("details", {}, make("summary", {}, text), make("ul", {}, ...parts)));
}

// Asks anew, with what the form says.
export async function refresh() {
  const given = new FormData(byId("explain-form"));
  const query = new URLSearchParams();
  for (const [key, value] of given) if (value !== "") query.set(key, value);
  const trouble = byId("explain-trouble");
  try {
    const answer = await ask("GET", `/v1/explain?${query}`);
    put(trouble, "");
    const limit = micros(answer.slower_than_us);
    const found = answer.classes.map(ofClass);
    if (found.length === 0) found.push(make("p", {}, "No request has ended in that time."));
    else found.unshift(layers(answer.classes));
    const now = answer.under_way.text;
    if (now !== null) found.unshift(make("p", { class: "warn" }, `${now}.`));
    byId("explanation").replaceChildren(...found);
    show(byId("slowest"), answer.slowest.length > 0);
    put(byId("slowest-title"), `The slowest of those over ${limit}`);
    byId("slowest-list").replaceChildren(...answer.slowest.map(slow));
  } catch (error) {
    put(trouble, error.message);
  }
}

// Whether something of it is open or has focus, so that new elements would be in the way.
export function inUse() {
  const place = byId("explain");
  return place.contains(document.activeElement) || place.querySelector("details[open]") !== null;
}

export function update(status) {
  paths = status.pool.devices.map((device) => device.path).filter((path) => path);
  if (status.cache) paths.push(status.cache.path);
  put(byId("stalls"), status.stalls ?? "No request of the last 10 minutes took more than 20 ms.");
  byId("stalls").className = status.stalls ? "warn" : "good";
}
