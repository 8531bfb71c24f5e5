// The clients that are connected over NBD: where they come from, and what they have open.

import { byId, list, make, mark, put, show } from "./elements.js";
import { ask } from "./api.js";
import { count, plural, span } from "./units.js";

// So many are shown at first.
const FEW = 12;
const COLUMNS = ["Volume", "May", "TLS", "In flight", "Connected"];

const state = { all: [], everything: false };

export function begin() {
  byId("clients-more").addEventListener("click", () => {
    state.everything = !state.everything;
    render();
  });
}

function from(client) {
  const { address, process } = client;
  if (address) return address;
  if (!process) return "a process of the server's machine";
  const user = process.uid === 0 ? "root" : `user ${process.uid}`;
  return `${process.program ?? "process"} ${process.pid}, ${user}`;
}

function tlsText(tls) {
  if (!tls) return "no";
  if (tls.proof === "nothing") return `${tls.version}, no name`;
  return `${tls.version}, ${tls.proof}: ${tls.names.join(", ")}`;
}

function create() {
  const who = make("th", { scope: "row" });
  const cells = COLUMNS.map((label) => make("td", { "data-label": label }));
  return { node: make("tr", {}, who, ...cells), who, cells };
}

function update_(row, client) {
  put(row.who, from(client));
  const open = client.export !== null;
  const texts = [
    open ? client.export : "none yet",
    open ? (client.read_only ? "read" : "read and write") : "–",
    tlsText(client.tls),
    count(client.requests),
    span(client.connected_seconds),
  ];
  texts.forEach((text, at) => put(row.cells[at], text));
  mark(row.node, "class", client.requests > 0 ? "busy" : null);
}

function render() {
  // The order stays where clients are busy by turns.
  const order = (a, b) => (a.export ?? "").localeCompare(b.export ?? "", undefined,
    { numeric: true }) || a.number - b.number;
  const sorted = [...state.all].sort(order);
  const shown = state.everything ? sorted : sorted.slice(0, FEW);
  list(byId("client-rows"), shown, (one) => one.number, create, update_);
  const there = sorted.length > 0;
  put(byId("client-count"), there ? plural(sorted.length, "client") : "");
  show(byId("client-table"), there);
  show(byId("clients-none"), !there);
  const more = byId("clients-more");
  show(more, sorted.length > FEW);
  put(more, state.everything ? `Show ${FEW}` : `Show all ${count(sorted.length)}`);
}

export async function refresh() {
  state.all = await ask("GET", "/v1/clients");
  render();
}
