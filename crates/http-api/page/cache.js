// The cache and write-back: what it holds, how far the pool is behind, what the controller thinks.

import { byId, describe, draw, list, make, mark, put, show } from "./elements.js";
import { ask } from "./api.js";
import { attempt, dialog, form } from "./dialogs.js";
import { byteRate, bytes, count, parseSize, percent, plural, seconds } from "./units.js";

const KINDS = ["dirty", "clean", "metadata", "free", "retired"];

export function begin() {
  byId("flush").addEventListener("click", () => attempt(
    (answer) => `Flush of the cache: job ${answer.job}.`, () => ask("POST", "/v1/cache/flush")));
  byId("collect").addEventListener("click", () => attempt(
    (answer) => `Garbage collection: job ${answer.job}.`, () => ask("POST", "/v1/gc")));
  byId("attach").addEventListener("click", askAttach);
  byId("detach").addEventListener("click", askDetach);
}

function askAttach() {
  dialog("Attach a cache", [form({
    notes: ["A file or a device of the server, on a disk that is faster than the pool's. A cache " +
            "that was not detached is never overwritten."],
    verb: "Attach",
    fields: [
      { name: "path", label: "Path" },
      {
        name: "size", label: "Size",
        hint: "Such as 100G, of a file that is not there yet. Empty: all of a device.",
      },
      {
        name: "force", label: "What it holds",
        options: [["", "is kept: refuse what is not empty"], ["yes", "may be overwritten"]],
      },
    ],
    act: ({ path, size, force }) => ask("POST", "/v1/cache", {
      path: path.trim(), force: force === "yes",
      ...(size.trim() ? { size_bytes: parseSize(size) } : {}),
    }),
    done: ({ path }) => `${path.trim()} is the pool's cache.`,
  })]);
}

function askDetach() {
  dialog("Detach the cache", [form({
    notes: ["Everything is written back to the pool, while it is served. Then clients wait for " +
            "the pool's devices. Nothing is lost; it cannot be cancelled."],
    verb: "Detach", fields: [], danger: true,
    act: () => ask("DELETE", "/v1/cache"),
    done: (_, answer) => `Detach of the cache: job ${answer.job}.`,
  })]);
}

// Why write-back goes at its rate.
export function controllerWords(cache) {
  const w = cache.writeback;
  const words = [];
  if (w.error) words.push(`Write-back fails: ${w.error}.`);
  // The controller's own count is of when it looked last, which may be some time ago.
  const now = cache.dirty_bytes;
  const [dirty, target] = [bytes(now), bytes(w.target)];
  if (now === 0) {
    words.push("Nothing is dirty: the pool has everything.");
  } else if (now > w.target) {
    words.push(`${dirty} are dirty, more than the target of ${target}: it goes faster.`);
  } else {
    words.push(`${dirty} are dirty, the target is ${target}: there is no hurry.`);
  }
  const sign = w.proportional < 0 ? "less" : "more";
  const parts = `${byteRate(Math.abs(w.proportional))} ${sign} for the distance to the target, ` +
    `${byteRate(w.integral)} from what it learned`;
  if (now > 0 && w.rate <= w.min) {
    words.push(`The controller asks for its lowest rate, ${byteRate(w.min)}. A pass goes faster ` +
      "where max_lag needs it.");
  } else if (now > 0 && w.rate >= w.max) {
    words.push(`The controller asks for its highest rate, ${byteRate(w.max)} (${parts}).`);
  } else if (now > 0 && w.rate > (w.proportional + w.integral) * 1.02 + 1) {
    words.push(`Clients ask for nothing, so it may carry ${byteRate(w.rate)}.`);
  } else if (now > 0) {
    words.push(`The controller asks for ${byteRate(w.rate)} (${parts}).`);
  }
  if (w.lag_seconds > w.max_lag_seconds) {
    words.push("Write-back lags: the pool image is older than max_lag.");
  }
  if (w.writers_waiting > 0) {
    words.push(`${plural(w.writers_waiting, "write")} wait for room in the cache.`);
  } else if (w.room_gone > 0.75) {
    words.push(`${percent(w.room_gone)} of the room for writes is gone: writers are slowed.`);
  }
  return words.join(" ");
}

// What the buckets hold, as a bar.
function bar(buckets) {
  const all = KINDS.reduce((sum, kind) => sum + (buckets[kind] ?? 0), 0) || 1;
  const picture = byId("buckets");
  let from = 0;
  const parts = [];
  for (const kind of KINDS) {
    const width = ((buckets[kind] ?? 0) * 1000) / all;
    if (width > 0) {
      parts.push(draw("rect", { class: `fill ${kind}`, x: from, y: 0, width, height: 10 }));
    }
    from += width;
  }
  picture.replaceChildren(...parts);
  const text = KINDS.map((kind) => `${percent((buckets[kind] ?? 0) / all)} ${kind}`).join(", ");
  mark(picture, "aria-label", `Buckets: ${text}`);
  const items = KINDS.map((kind) => ({ kind, share: (buckets[kind] ?? 0) / all }));
  const create = ({ kind }) => {
    const swatch = draw("svg", { class: "swatch", width: 10, height: 10, "aria-hidden": "true" },
      draw("rect", { class: `fill ${kind}`, width: 10, height: 10 }));
    const value = make("span", { class: "value" });
    return { node: make("li", {}, swatch, make("span", {}, kind), value), value };
  };
  const shown = items.filter((item) => item.kind !== "retired" || item.share > 0);
  list(byId("bucket-kinds"), shown, (item) => item.kind, create,
    (row, item) => put(row.value, percent(item.share)));
}

export function update(status) {
  const { cache } = status;
  const there = cache !== null && cache !== undefined;
  show(byId("cache-there"), there);
  show(byId("cache-none"), !there);
  byId("flush").disabled = !there;
  byId("collect").disabled = !there;
  byId("detach").disabled = !there;
  show(byId("attach"), !there);
  if (!there) return;
  const w = cache.writeback;
  const ratio = cache.hit_ratio;
  bar(cache.buckets);
  put(byId("controller"), controllerWords(cache));
  const late = w.lag_seconds > w.max_lag_seconds ? "warn" : null;
  const bad = cache.state === "serving" ? null : "bad";
  describe(byId("cache-facts"), [
    ["State", cache.state === "failed" ? "failed: it takes nothing any more" : cache.state, bad],
    ["Device", `${cache.path}, ${bytes(cache.size_bytes)}`],
    ["Dirty", `${bytes(cache.dirty_bytes)}, target ${bytes(w.target)}`],
    ["Lag", `${seconds(w.lag_seconds)}, ${seconds(w.max_lag_seconds)} at most (max_lag)`, late],
    ["Controller", `${byteRate(w.rate)}, from ${byteRate(w.min)} to ${byteRate(w.max)}`],
    ["Passes", `${count(w.passes)}, ${bytes(w.carried_bytes)} carried, ` +
      `${plural(w.sealed_cuts, "cut")} under way`],
    ["Room gone", percent(w.room_gone), w.room_gone > 0.75 ? "warn" : null],
    ["Found here", `${percent(ratio.last_minute)} of the last minute's reads, ` +
      `${percent(ratio.last_hour)} of the last hour's`],
    ["Journal", `${bytes(cache.journal.used)} of ${bytes(cache.journal.size)}`],
    ["At work", cache.working.length > 0 ? cache.working.join(", ") : "nothing"],
  ]);
}
