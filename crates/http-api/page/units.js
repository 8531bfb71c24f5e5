// Numbers as people read them, always with their units.

const NONE = "–";
const BYTES = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

function known(value) {
  return typeof value === "number" && Number.isFinite(value);
}

// Three digits, fewer where the number is whole.
function digits(value) {
  if (Number.isInteger(value)) return String(value);
  if (value >= 99.95) return value.toFixed(0);
  return value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

export function bytes(value) {
  if (!known(value)) return NONE;
  let unit = 0;
  for (; value >= 1023.5 && unit < BYTES.length - 1; unit++) value /= 1024;
  return `${digits(unit === 0 ? Math.round(value) : value)} ${BYTES[unit]}`;
}

export function byteRate(value) {
  return known(value) ? `${bytes(value)}/s` : NONE;
}

// A whole number, its thousands apart.
export function count(value) {
  if (!known(value)) return NONE;
  return String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, "\u202f");
}

export function rate(value) {
  if (!known(value)) return NONE;
  return `${value > 0 && value < 10 ? digits(value) : count(value)}/s`;
}

export function micros(value) {
  if (!known(value)) return NONE;
  if (value < 999.5) return `${digits(value < 1 ? value : Math.round(value))} µs`;
  if (value < 999500) return `${digits(value / 1e3)} ms`;
  return seconds(value / 1e6);
}

// A length of time.
export function seconds(value) {
  if (!known(value)) return NONE;
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${digits(value * 1e3)} ms`;
  if (value < 60) return `${digits(value)} s`;
  return span(value);
}

// A length of time in two units at most.
export function span(value) {
  if (!known(value)) return NONE;
  const whole = Math.round(value);
  const [d, h] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24];
  const [m, s] = [Math.floor(whole / 60) % 60, whole % 60];
  const parts = [[d, "d"], [h, "h"], [m, "min"], [s, "s"]];
  const first = Math.max(0, parts.findIndex(([n]) => n > 0));
  const two = parts.slice(first, first + 2).filter(([n], at) => n > 0 || at === 0);
  return whole === 0 ? "0 s" : two.map(([n, unit]) => `${n} ${unit}`).join(" ");
}

export function percent(share) {
  return known(share) ? `${(share * 100).toFixed(1)} %` : NONE;
}

// The time of day.
export function clock(milliseconds) {
  return new Date(milliseconds).toLocaleTimeString([], { hour12: false });
}

// Day and time of seconds since 1970.
export function moment(at) {
  if (!at) return "at a time that is not known";
  return new Date(at * 1e3).toLocaleString([], { hour12: false });
}

export function plural(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

// Bytes of a text such as 10G, 1.5 TiB or 4096. What is no size stays a text: the server says what
// is wrong with it.
export function parseSize(text) {
  const match = /^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtpe]?)(?:i?b)?\s*$/i.exec(text);
  if (!match) return text.trim();
  const power = match[2] ? "kmgtpe".indexOf(match[2].toLowerCase()) + 1 : 0;
  return Math.round(Number(match[1]) * 1024 ** power);
}

// A size as `parseSize` reads it, without loss.
export function sizeText(value) {
  let unit = 0;
  for (; value >= 1024 && value % 1024 === 0 && unit < 6; unit++) value /= 1024;
  return `${value}${["", "K", "M", "G", "T", "P", "E"][unit]}`;
}

// A whole number of a field; other texts stay, and the server says what is wrong with them.
export function parseCount(text) {
  return /^\s*[0-9]+\s*$/.test(text) ? Number(text) : text.trim();
}
