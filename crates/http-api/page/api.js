// Requests to the server that the page came from. The token is kept for as long as the tab is.

const KEY = "forebay-token";
// A server that says nothing for so long does not answer.
const LIMIT_MS = 15000;

// Why a request was not carried out: `kind` and `message` as the API has them. The kind `offline`
// is the page's own: there was no answer.
export class Refused extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

// What the API answers; null where it has nothing to say. Throws `Refused`.
export async function ask(method, path, fields) {
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  if (fields !== undefined) headers["Content-Type"] = "application/json";
  const options = { method, headers, cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) };
  if (fields !== undefined) options.body = JSON.stringify(fields);
  let response, text;
  try {
    response = await fetch(path, options);
    text = await response.text();
  } catch {
    throw new Refused("offline", "the server does not answer");
  }
  let answer = null;
  try {
    answer = text ? JSON.parse(text) : null;
  } catch {
    throw new Refused("offline", `the answer is not of Forebay (status ${response.status})`);
  }
  if (response.ok) return answer;
  const { kind = "failed", message = `status ${response.status}` } = answer?.error ?? {};
  throw new Refused(kind, message);
}

// The path of one volume, or of something below it.
export function volumePath(name, below = "") {
  return `/v1/volumes/${encodeURIComponent(name)}${below}`;
}

const changed = new EventTarget();

// Says that something was changed: what is shown is asked for anew.
export function tellChange() {
  changed.dispatchEvent(new Event("change"));
}

export function onChange(action) {
  changed.addEventListener("change", action);
}
