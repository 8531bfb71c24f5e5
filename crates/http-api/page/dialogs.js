// Dialogs with a form, and the line that says what was done. A form stays open until the server has
// done what it asks for; what the server refuses is shown in it, in the server's words.

import { make, button, byId, put, show } from "./elements.js";
import { tellChange } from "./api.js";

let hiding = 0;

// Says what was done, for some seconds.
export function say(text) {
  const place = byId("said");
  put(place, text);
  show(place, true);
  clearTimeout(hiding);
  hiding = setTimeout(() => show(place, false), 8000);
}

let fields = 0;

// A field of a form: `name`, `label`, and `value`, `hint`, `options` or attributes.
function field({ name, label, hint, options, value = "", ...more }) {
  const id = `field${++fields}`;
  const hintId = hint ? `${id}-hint` : null;
  const common = { id, name, "aria-describedby": hintId };
  let input;
  if (options) {
    input = make("select", common);
    for (const [word, text] of options) {
      input.append(make("option", { value: word, selected: word === value }, text));
    }
  } else {
    const plain = { autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
    input = make("input", { type: "text", ...plain, ...common, value, ...more });
  }
  const parts = [make("label", { for: id }, label), input];
  if (hint) parts.push(make("p", { class: "hint", id: hintId }, hint));
  return make("div", { class: "field" }, ...parts);
}

// A form: `fields`, `verb` on its button, `act(values)`, and `done(values)`, which makes a text to
// say. `check(values)` says whether the button can be pressed. `danger`: it destroys.
export function form({ title, notes = [], fields, verb, act, done, check, danger, more = [] }) {
  const trouble = make("p", { class: "trouble", role: "alert" });
  const submit = make("button", { type: "submit", class: danger ? "danger" : "main" }, verb);
  const texts = notes.map((note) => make("p", {}, note));
  const title_ = title ? make("h3", {}, title) : null;
  const row = make("div", { class: "buttons" }, submit, ...more);
  const whole = make("form", {}, title_, ...texts, ...fields.map(field), trouble, row);
  whole.noValidate = true;
  const values = () => Object.fromEntries([...new FormData(whole)]);
  const judge = () => {
    if (check) submit.disabled = !check(values());
  };
  judge();
  whole.addEventListener("input", judge);
  whole.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (submit.disabled) return;
    const given = values();
    submit.disabled = true;
    put(trouble, "");
    try {
      const answer = await act(given);
      if (done) say(done(given, answer));
      whole.dispatchEvent(new Event("done"));
      tellChange();
    } catch (error) {
      put(trouble, error.message);
    }
    submit.disabled = false;
    judge();
  });
  return whole;
}

// A dialog of these forms. It closes when one of them is done, unless `stays`.
export function dialog(title, forms, { stays = false, close = "Cancel", locked = false } = {}) {
  const id = `dialog${++fields}`;
  const heading = make("h2", { id }, title);
  const whole = make("dialog", { "aria-labelledby": id }, heading, ...forms);
  const end = () => whole.close();
  if (locked) {
    whole.addEventListener("cancel", (event) => event.preventDefault());
    whole.addEventListener("keydown", (event) => {
      if (event.key === "Escape") event.preventDefault();
    });
  } else if (forms.length === 1 && !stays) {
    forms[0].querySelector(".buttons")?.append(button(close, end));
  } else {
    whole.append(make("div", { class: "buttons" }, button(close, end)));
  }
  for (const one of forms) if (!stays) one.addEventListener("done", end);
  whole.addEventListener("close", () => whole.remove());
  document.body.append(whole);
  whole.showModal();
  if (document.activeElement instanceof HTMLInputElement) document.activeElement.select();
  return whole;
}

// Does what a button asks for, and says what came of it.
export async function attempt(text, act) {
  try {
    const answer = await act();
    say(typeof text === "function" ? text(answer) : text);
  } catch (error) {
    say(`Refused: ${error.message}`);
  }
  tellChange();
}
