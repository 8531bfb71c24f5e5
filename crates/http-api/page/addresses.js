// The addresses of a volume: the URIs at which clients find it, to be copied.

import { button, make, put } from "./elements.js";

let uris = [];
let fields = 0;

export function update(status) {
  uris = status.server.nbd_uris ?? [];
}

// The name of a volume as a part of a URI (RFC 3986), in which a shell finds nothing either.
function encoded(name) {
  const hex = (letter) => `%${letter.charCodeAt(0).toString(16).toUpperCase()}`;
  return encodeURIComponent(name).replace(/[!'()*]/g, hex);
}

// The URI of a volume. A server that listens everywhere is where this page is from.
function uriOf(uri, name) {
  const anywhere = /^(nbds?:\/\/)(?:0\.0\.0\.0|\[::\])(?=:)/;
  const placed = uri.replace(anywhere, (_, scheme) => scheme + location.hostname);
  return placed.replace("{volume}", () => encoded(name));
}

function labelOf(uri) {
  if (uri.startsWith("nbd+unix:")) return "On the server's machine";
  return uri.startsWith("nbds:") ? "Over TCP, with TLS" : "Over TCP";
}

// Copies what a field has. A page that came over HTTP from another machine has no clipboard but
// that of its selection.
async function copy(input, told) {
  try {
    await navigator.clipboard.writeText(input.value);
    put(told, "Copied.");
  } catch {
    input.focus();
    input.select();
    put(told, document.execCommand("copy") ? "Copied." : "It is selected: copy it by a key.");
  }
}

// A part of a dialog with all addresses of a volume; null where the server does not tell.
export function addressesOf(name) {
  if (uris.length === 0) return null;
  const told = make("p", { class: "hint", role: "status" });
  const rows = uris.map((uri) => {
    const id = `address${++fields}`;
    const label = labelOf(uri);
    const input = make("input", {
      id, type: "text", readonly: true, spellcheck: "false", value: uriOf(uri, name),
      on: { focus: () => input.select() },
    });
    const act = button("Copy", () => copy(input, told), { "aria-label": `Copy (${label})` });
    return make("div", { class: "field" }, make("label", { for: id }, label),
      make("div", { class: "copied" }, input, act));
  });
  return make("section", { class: "addresses" }, make("h3", {}, "Address"), ...rows, told);
}
