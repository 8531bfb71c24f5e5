// The meaning of a problem, and what to do: its section of docs/operations.md, as the server has
// it.

import { make } from "./elements.js";
import { ask } from "./api.js";
import { dialog, say } from "./dialogs.js";

// Words that are marked, each with the element for it. Code comes first: its stars are its own.
const MARKS = [[/^`([^`]+)`$/, "code"], [/^\*\*(.+)\*\*$/, "strong"], [/^\*([^*]+)\*$/, "em"]];
const MARKED = /(`[^`]+`|\*\*.+?\*\*|\*[^*]+\*)/;

// A text, with elements where its words are marked.
function words(text) {
  return text.split(MARKED).filter((part) => part !== "").map((part) => {
    for (const [mark, name] of MARKS) {
      const found = mark.exec(part);
      if (found) return make(name, {}, ...(name === "code" ? [found[1]] : words(found[1])));
    }
    return part;
  });
}

function paragraph(text) {
  const typed = /^```[a-z]*\n([^]*?)\n?```$/.exec(text);
  if (typed) return make("pre", {}, make("code", {}, typed[1]));
  return make("p", {}, ...words(text.replaceAll("\n", " ")));
}

// Opens a dialog with the advice on the problem of this name.
export async function showAdvice(page) {
  try {
    const advice = await ask("GET", `/v1/problems/${encodeURIComponent(page)}`);
    if (document.querySelector("dialog")) return;
    const parts = advice.text.split(/\n{2,}/).map(paragraph);
    // The button at the end would bring the end of a long text into view.
    const first = { tabindex: 0, autofocus: true };
    const text = make("section", { class: "advice", ...first }, ...parts);
    dialog(`What to do: ${page}`, [text], { stays: true, close: "Close" });
  } catch (error) {
    say(`There is no advice: ${error.message}`);
  }
}
