// Line charts of the last hour, or of what there is of it. All of them share one cursor: the
// pointer or the arrow keys set it in one chart, and the legends of all show the values of that
// moment.

import { make, draw, byId, put, mark } from "./elements.js";
import { clock, span } from "./units.js";

const HEIGHT = 168;
const EDGE = { left: 66, right: 10, top: 8, bottom: 22 };
// Samples further apart than this are not joined, in seconds.
const GAP = 13;

// The least time that is shown, in seconds.
const LEAST = 60;
// Seconds between the marks of the axis of time: the first of these with which there are few.
const TIMES = [15, 30, 60, 120, 300, 600, 900];
const MARKS = 5;

const all = [];
// What is shown: the seconds back from now at most, samples, and the moment of the cursor, if there
// is one.
const view = {
  span: 3600, every: 5, times: [], series: {}, limits: {}, cursor: null, due: false,
};

// The seconds that are shown: no more than there are samples of.
function shownSpan(now) {
  const age = now - (view.times[0] ?? now);
  return Math.min(view.span, Math.max(age, LEAST));
}

// The time that is shown, in words.
function spanTitle(seconds) {
  const minutes = Math.round(seconds / 60);
  if (minutes >= 60) return "The last hour";
  return minutes < 2 ? "The last minute" : `The last ${minutes} minutes`;
}

// A mark of the axis of time. All marks of an axis have the same unit.
function backText(seconds, step) {
  if (seconds === 0) return "now";
  return step % 60 === 0 ? `−${seconds / 60} min` : `−${seconds} s`;
}

// Steps of an axis from 0 to `most`.
function steps(most, binary, finest = 0) {
  let step;
  if (binary) {
    step = 2 ** Math.ceil(Math.log2(most / 4));
  } else {
    const unit = 10 ** Math.floor(Math.log10(most / 4));
    const fits = (n) => n * 4 >= most * 0.999 && (finest === 0 || n % finest === 0);
    step = [1, 2, 2.5, 5, 10].map((n) => n * unit).find(fits) ?? finest;
  }
  const found = [];
  for (let at = 0; at < most + step * 0.999; at += step) found.push(at);
  return found;
}

function decades(least, most) {
  const from = Math.floor(Math.log10(least) + 1e-9);
  const to = Math.max(Math.ceil(Math.log10(most) - 1e-9), from + 1);
  return Array.from({ length: to - from + 1 }, (_, at) => 10 ** (from + at));
}

// The place of the sample that is nearest to a moment; -1 where there is none.
function nearest(times, moment) {
  let found = -1;
  for (let at = 0; at < times.length; at++) {
    if (found < 0 || Math.abs(times[at] - moment) < Math.abs(times[found] - moment)) found = at;
  }
  return found;
}

function cursorAt() {
  if (view.cursor === null || view.times.length === 0) return -1;
  const at = nearest(view.times, view.cursor);
  return Math.abs(view.times[at] - view.cursor) > GAP ? -1 : at;
}

function agoText(seconds) {
  return seconds < view.every ? "now" : `${span(seconds)} ago`;
}

export class Chart {
  // `lines` have a `name` of a series, a `label` and a `kind`, which is a class in the style sheet.
  // `format` makes text of a value. `log`: the axis is logarithmic; `binary`: its steps are powers
  // of two; `most`: it ends there; `finest`: its steps are multiples of it; `limits`: names of
  // limits that are drawn.
  constructor(parent, title, lines, format, more = {}) {
    Object.assign(this, { title, lines, format, width: 0 }, more);
    this.picture = draw("svg", { role: "img", height: HEIGHT, "aria-label": title });
    this.when = make("span", { class: "when" });
    const legend = make("ul", { class: "legend" });
    this.values = lines.map(({ label, kind }) => {
      const swatch = draw("svg", { class: "swatch", width: 18, height: 10, "aria-hidden": "true" },
        draw("line", { class: `line ${kind}`, x1: 1, x2: 17, y1: 5, y2: 5 }));
      const value = make("span", { class: "value" });
      legend.append(make("li", {}, swatch, make("span", {}, label), value));
      return value;
    });
    this.whole = make("figure", {
      class: "chart",
      tabindex: 0,
      role: "group",
      "aria-label": `${title}. Arrow keys move through time, Escape goes back to now.`,
      on: {
        keydown: (event) => this.key(event),
        pointermove: (event) => this.point(event),
        pointerdown: (event) => this.point(event),
        pointerleave: (event) => event.pointerType === "mouse" && setCursor(null),
      },
    }, make("figcaption", {}, make("h3", {}, title), this.when), this.picture, legend);
    parent.append(this.whole);
    all.push(this);
    new ResizeObserver(() => this.fit()).observe(this.whole);
  }

  fit() {
    const width = Math.floor(this.picture.parentElement.clientWidth - 24);
    if (width === this.width || width < 100) return;
    this.width = width;
    mark(this.picture, "width", width);
    this.render();
  }

  // The moment under the pointer.
  point(event) {
    const from = this.picture.getBoundingClientRect().left + EDGE.left;
    const share = (event.clientX - from) / (this.width - EDGE.left - EDGE.right);
    if (share < -0.02 || share > 1.02 || view.times.length === 0) return;
    const now = Date.now() / 1e3;
    view.cursor = now - (1 - share) * shownSpan(now);
    // A pointer moves more often than pictures are shown.
    if (!view.due) requestAnimationFrame(renderAll);
    view.due = true;
  }

  key(event) {
    const { times } = view;
    const last = times.length - 1;
    const now = Date.now() / 1e3;
    const first = times.findIndex((time) => time >= now - shownSpan(now));
    const at = cursorAt() < 0 ? last : cursorAt();
    const step = event.shiftKey ? 12 : 1;
    const places = {
      ArrowLeft: Math.max(first, at - step),
      ArrowRight: Math.min(last, at + step),
      Home: first,
      End: last,
    };
    if (event.key === "Escape") {
      setCursor(null);
    } else if (event.key in places && last >= 0) {
      event.preventDefault();
      setCursor(times[places[event.key]]);
      put(byId("readout"), this.reading());
    }
  }

  // What the legend says, for screen readers.
  reading() {
    const values = this.lines.map((line, at) => `${line.label} ${this.values[at].textContent}`);
    return `${this.when.textContent}: ${values.join(", ")}`;
  }

  // The values of a line that are seen.
  seen(line, since) {
    const values = view.series[line.name] ?? [];
    return values.filter((value, at) => value !== null && view.times[at] >= since);
  }

  axis(since) {
    const values = this.lines.flatMap((line) => this.seen(line, since));
    const limits = (this.limits ?? []).map((name) => view.limits[name]?.value ?? 0);
    if (this.log) {
      const some = values.filter((value) => value > 0);
      return some.length === 0 ? [100, 1000, 1e4] : decades(Math.min(...some), Math.max(...some));
    }
    if (this.most) return steps(this.most, false);
    const most = Math.max(...values, ...limits, 0);
    return steps(most > 0 ? most : (this.least ?? 4), this.binary, this.finest);
  }

  render() {
    if (this.width === 0) return;
    const now = Date.now() / 1e3;
    const length = shownSpan(now);
    const since = now - length;
    const ticks = this.axis(since);
    const [low, high] = [ticks[0], ticks.at(-1)];
    const [right, bottom] = [this.width - EDGE.right, HEIGHT - EDGE.bottom];
    const scale = this.log ? Math.log10 : (value) => value;
    const x = (time) => EDGE.left + ((time - since) / length) * (right - EDGE.left);
    const y = (value) => {
      const share = (scale(Math.max(value, low)) - scale(low)) / (scale(high) - scale(low));
      return bottom - Math.min(share, 1) * (bottom - EDGE.top);
    };
    const parts = [];
    for (const tick of ticks) {
      const at = y(tick).toFixed(1);
      parts.push(draw("line", { class: "grid", x1: EDGE.left, x2: right, y1: at, y2: at }));
      const label = { class: "tick", x: EDGE.left - 6, y: Number(at) + 4, "text-anchor": "end" };
      parts.push(draw("text", label, this.format(tick)));
    }
    const step = TIMES.find((one) => length / one <= MARKS) ?? TIMES.at(-1);
    for (let back = 0; back <= length; back += step) {
      const text = backText(back, step);
      const anchor = back === 0 ? "end" : "middle";
      const label = { class: "tick", x: x(now - back), y: HEIGHT - 5, "text-anchor": anchor };
      parts.push(draw("text", label, text));
    }
    for (const name of this.limits ?? []) this.limit(parts, view.limits[name], right, y);
    for (const line of this.lines) {
      const d = this.path(view.series[line.name] ?? [], since, x, y);
      if (d) parts.push(draw("path", { class: `line ${line.kind}`, d }));
    }
    const at = cursorAt();
    if (at >= 0 && view.times[at] >= since) {
      const place = x(view.times[at]).toFixed(1);
      parts.push(draw("line", { class: "cursor", x1: place, x2: place, y1: EDGE.top, y2: bottom }));
      for (const line of this.lines) {
        const value = view.series[line.name]?.[at];
        if (value === null || value === undefined) continue;
        parts.push(draw("circle", { class: `dot ${line.kind}`, cx: place, cy: y(value), r: 3 }));
      }
    }
    this.picture.replaceChildren(...parts);
    this.read(at, now);
  }

  limit(parts, limit, right, y) {
    if (!(limit?.value > 0)) return;
    const at = y(limit.value).toFixed(1);
    parts.push(draw("line", { class: "limit", x1: EDGE.left, x2: right, y1: at, y2: at }));
    const below = Number(at) < EDGE.top + 14 ? 13 : -4;
    const label = { class: "limit-name", x: right, y: Number(at) + below, "text-anchor": "end" };
    parts.push(draw("text", label, `${limit.label} ${this.format(limit.value)}`));
  }

  path(values, since, x, y) {
    let [d, before] = ["", null];
    values.forEach((value, at) => {
      const time = view.times[at];
      if (value === null || time < since) {
        before = null;
        return;
      }
      const place = `${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
      const joined = before !== null && time - before < GAP;
      // What stands alone is a dot: a line of no length with round ends.
      d += joined ? `L${place}` : `M${place}h0`;
      before = time;
    });
    return d;
  }

  // The legend: the values at the cursor, or the last ones.
  read(cursor, now) {
    const at = cursor >= 0 ? cursor : view.times.length - 1;
    const time = view.times[at];
    const past = cursor >= 0;
    put(this.when, past ? `${clock(time * 1e3)}, ${agoText(now - time)}` : "now");
    mark(this.when, "class", past ? "when past" : "when");
    this.lines.forEach((line, index) => {
      const value = view.series[line.name]?.[at];
      put(this.values[index], this.format(value ?? undefined));
    });
  }
}

function setCursor(moment) {
  view.cursor = moment;
  renderAll();
}

export function renderAll() {
  view.due = false;
  put(byId("charts-title"), spanTitle(shownSpan(Date.now() / 1e3)));
  for (const chart of all) chart.render();
}

// What is pressed beside a chart ends the look at the past: a finger has no Escape.
addEventListener("pointerdown", (event) => {
  if (view.cursor !== null && !event.target.closest(".chart")) setCursor(null);
});

// Shows so much of the past, if there is as much.
export function setSpan(seconds) {
  view.span = seconds;
  renderAll();
}

// Shows other samples: `times` are seconds since 1970.
export function showSamples(times, series, every) {
  Object.assign(view, { times, series, every });
  renderAll();
}

// A limit that charts draw: `value` and `label` by name.
export function setLimits(limits) {
  view.limits = limits;
}
