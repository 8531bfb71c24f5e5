// The page: asks the server for its status again and again, and shows it.

import { byId, put, show } from "./elements.js";
import { ask, hasToken, onChange, setToken } from "./api.js";
import { dialog, form } from "./dialogs.js";
import { clock } from "./units.js";
import * as addresses from "./addresses.js";
import * as cache from "./cache.js";
import * as clients from "./clients.js";
import * as devices from "./devices.js";
import * as events from "./events.js";
import * as explain from "./explain.js";
import * as health from "./health.js";
import * as history from "./history.js";
import * as jobs from "./jobs.js";
import * as settings from "./settings.js";
import * as volumes from "./volumes.js";

const EVERY_MS = 2000;
// With so many volumes a status is long, and is asked for less often.
const MANY = 100;
const MANY_MS = 5000;
// A status that is older than the next one should be, by so much, is no live one.
const LATE_MS = 3000;
const HISTORY_MS = 5000;
const EXPLAIN_MS = 30000;
const SETTINGS_MS = 60000;
// Seconds between attempts to reach a server that does not answer.
const RETRY = [1, 2, 3, 5];

const state = {
  timer: 0, asking: false, again: false, failures: 0, since: null, uptime: 0, token: null,
  seen: null, every: EVERY_MS,
  history: -Infinity, explain: -Infinity, settings: -Infinity,
};

function later(milliseconds) {
  clearTimeout(state.timer);
  state.timer = setTimeout(refresh, milliseconds);
}

// Shows what the server says now; returns how many volumes it has.
async function look() {
  const status = await ask("GET", "/v1/status");
  const all = await ask("GET", "/v1/jobs");
  const restarted = status.server.uptime_seconds < state.uptime;
  state.uptime = status.server.uptime_seconds;
  state.seen = performance.now();
  health.connection(null);
  health.update(status);
  history.update(status);
  cache.update(status);
  devices.update(status);
  addresses.update(status);
  volumes.update(status);
  jobs.update(status, all);
  explain.update(status);
  state.since = clock(Date.now());
  put(byId("asked"), `status of ${state.since}`);
  await clients.refresh();
  await events.refresh();
  const now = performance.now();
  if (restarted || now - state.history >= HISTORY_MS) {
    state.history = now;
    await history.refresh(restarted);
  }
  if (restarted || now - state.explain >= EXPLAIN_MS && !explain.inUse()) {
    state.explain = now;
    await explain.refresh();
  }
  if (restarted || now - state.settings >= SETTINGS_MS) {
    state.settings = now;
    await settings.refresh();
  }
  show(byId("content"), true);
  return status.volumes.length;
}

async function refresh() {
  if (state.asking) {
    state.again = true;
    return;
  }
  state.asking = true;
  clearTimeout(state.timer);
  try {
    const many = await look();
    state.failures = 0;
    state.every = many > MANY ? MANY_MS : EVERY_MS;
    later(state.every);
  } catch (error) {
    if (error.kind === "unauthorized") {
      askToken(error.message);
    } else {
      // An answer that the page does not understand is a mistake in it: it goes on asking.
      if (error.kind === undefined) console.error(error);
      wait(error.message);
    }
  } finally {
    state.asking = false;
    if (state.again) later(0);
    state.again = false;
  }
}

// A server that takes requests and does not answer is not live.
function watch() {
  if (state.seen === null || document.hidden) return;
  const age = performance.now() - state.seen;
  if (age > state.every + LATE_MS) health.late(Math.floor(age / 1000));
}

// Counts down to the next attempt.
function wait(why) {
  let left = RETRY[Math.min(state.failures, RETRY.length - 1)];
  state.failures += 1;
  const step = () => {
    health.connection({ why, since: state.since, wait: left });
    clearTimeout(state.timer);
    state.timer = setTimeout(left > 0 ? step : refresh, left > 0 ? 1000 : 0);
    left -= 1;
  };
  step();
}

// Asks for the token until it is the right one.
function askToken(why) {
  show(byId("forget"), false);
  if (state.token) return;
  const token = form({
    notes: [
      // Without a token the server says what a program has to send.
      ...(hasToken() ? [why] : []),
      "The token is in the file that token_file in [http] names: http.token in the directory of " +
      "forebay up. This tab keeps it until it is closed.",
    ],
    verb: "Open",
    fields: [{ name: "token", label: "Token", type: "password" }],
    act: async (given) => {
      setToken(given.token.trim());
      try {
        await ask("GET", "/v1/jobs");
      } catch (error) {
        setToken(null);
        throw error;
      }
      state.token = null;
      show(byId("forget"), true);
    },
  });
  state.token = dialog("A token is needed", [token], { locked: true });
}

function begin() {
  history.begin();
  cache.begin();
  clients.begin();
  devices.begin();
  explain.begin();
  settings.begin();
  volumes.begin();
  show(byId("forget"), hasToken());
  byId("forget").addEventListener("click", () => {
    setToken(null);
    location.reload();
  });
  byId("again").addEventListener("click", refresh);
  onChange(refresh);
  // A page that is not seen asks for nothing.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(state.timer);
    else if (!state.token) refresh();
  });
  setInterval(watch, 1000);
  refresh();
}

begin();
