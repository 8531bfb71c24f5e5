// Elements of the page. They are made of text and never parsed, so nothing that a server says
// becomes markup. They are changed in place, so focus and scroll positions stay.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "on") {
      for (const [event, action] of Object.entries(value)) node.addEventListener(event, action);
    } else if (value === true) {
      node.setAttribute(name, "");
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(name, value);
    }
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// An element with these attributes; `on` has handlers of events. Children are nodes or text.
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// The same for a part of a drawing.
export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

export function button(text, action, more = {}) {
  return make("button", { type: "button", on: { click: action }, ...more }, text);
}

// Sets a text where it has changed.
export function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Sets an attribute where it has changed.
export function mark(node, name, value) {
  if (value === null || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

const kept = new WeakMap();

// Makes the children of `parent` be those of `items`: `create(item)` makes an object whose `node`
// is the child, `update(object, item)` brings it up to date. A child stays as long as its key does.
export function list(parent, items, key, create, update) {
  const before = kept.get(parent) ?? new Map();
  const now = new Map();
  for (const item of items) {
    const id = key(item);
    const one = before.get(id) ?? create(item);
    update(one, item);
    now.set(id, one);
  }
  for (const [id, one] of before) if (now.get(id) !== one) one.node.remove();
  let place = parent.firstChild;
  for (const one of now.values()) {
    if (one.node === place) place = place.nextSibling;
    else parent.insertBefore(one.node, place);
  }
  kept.set(parent, now);
}

// A list of names and facts: `facts` has pairs of a name and a text, and a class if it is special.
export function describe(parent, facts) {
  const create = () => {
    const [name, text] = [make("dt"), make("dd")];
    return { node: make("div", {}, name, text), name, text };
  };
  list(parent, facts, (fact) => fact[0], create, (one, [name, text, kind]) => {
    put(one.name, name);
    put(one.text, text);
    mark(one.text, "class", kind ?? null);
  });
}
