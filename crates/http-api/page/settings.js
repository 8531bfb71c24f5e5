// Settings: what they are, where each value comes from, and how to change those that may change
// while the server serves.

import { byId, button, list, make, mark, put, show } from "./elements.js";
import { ask, onChange } from "./api.js";
import { dialog, form } from "./dialogs.js";
import { count, plural } from "./units.js";

const AT_ONCE = "at once";
const state = { all: [], everything: false };

export function begin() {
  byId("settings-filter").addEventListener("input", render);
  byId("settings-more").addEventListener("click", () => {
    state.everything = !state.everything;
    render();
  });
  // Some other part of the page may have changed one, and so may this one.
  onChange(() => refresh().catch(() => {}));
}

function askChange(key) {
  const setting = state.all.find((one) => one.key === key);
  if (!setting) return;
  const range = setting.range_text ? `It can be ${setting.range_text}. ` : "";
  dialog(`Setting ${key}`, [form({
    notes: [`${setting.what}.`], verb: "Set",
    fields: [
      {
        name: "value", label: "Value", value: String(setting.value),
        hint: `${range}Its default is ${setting.default}.`,
      },
      {
        name: "save", label: "Keep it",
        options: [["", "until the server ends"], ["yes", "in the configuration file too"]],
      },
    ],
    act: ({ value, save }) => ask("PUT", `/v1/settings/${encodeURIComponent(key)}`, {
      value: value.trim(), save: save === "yes",
    }),
    done: ({ value, save }) => `${key} is ${value.trim()}${save ? ", and is saved" : ""}.`,
  })]);
}

function create(setting) {
  const cell = (label) => make("td", { "data-label": label });
  const key = make("th", { scope: "row" }, setting.key);
  const [value, from, changes] = [cell("Value"), cell("From"), cell("Changes")];
  const what = make("td", { "data-label": "What" }, setting.what);
  const change = button("Set…", () => askChange(setting.key), {
    "aria-label": `Set ${setting.key}`,
  });
  const acts = make("td", { class: "acts" }, setting.changes === AT_ONCE ? change : null);
  return { node: make("tr", {}, key, value, from, changes, what, acts), value, from, changes };
}

function update_(row, setting) {
  put(row.value, String(setting.value));
  put(row.from, setting.from);
  put(row.changes, setting.changes);
  mark(row.node, "class", setting.from === "default" ? null : "busy");
}

function render() {
  const filter = byId("settings-filter").value.trim().toLowerCase();
  const own = state.all.filter((one) => one.from !== "default");
  let shown = state.everything ? state.all : own;
  if (filter) {
    shown = state.all.filter((one) => `${one.key} ${one.what}`.toLowerCase().includes(filter));
  }
  list(byId("setting-rows"), shown, (one) => one.key, create, update_);
  show(byId("setting-table"), shown.length > 0);
  put(byId("settings-count"), `${count(shown.length)} of ${plural(state.all.length, "setting")}`);
  show(byId("settings-none"), shown.length === 0);
  put(byId("settings-none"), filter ? "No setting is called so."
    : "All settings have their defaults.");
  show(byId("settings-more"), !filter);
  put(byId("settings-more"), state.everything ? "Show those that were set"
    : `Show all ${count(state.all.length)}`);
}

export async function refresh() {
  state.all = await ask("GET", "/v1/settings");
  render();
}
