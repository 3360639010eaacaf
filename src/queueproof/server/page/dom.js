// Small helpers. Text from anywhere becomes a text node, never markup.

export const byId = (id) => document.getElementById(id);

// element("td", {class: "x", onclick: f}, "text", child): attributes, listeners and children.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function fill(node, ...children) {
  node.replaceChildren(...children);
}

export function show(node, visible) {
  node.hidden = !visible;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.0995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  return value < 9.95 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
}

export function rate(value) {
  if (value === null || value === undefined) return "–";
  if (value >= 10000) return `${(value / 1000).toFixed(1)}k`;
  return value >= 100 || value === 0 ? value.toFixed(0) : value.toFixed(1);
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

export function ago(epochSeconds, nowSeconds) {
  const passed = Math.max(0, Math.round(nowSeconds - epochSeconds));
  if (passed < 2) return "just now";
  if (passed < 60) return `${passed} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 172800) return `${Math.floor(passed / 3600)} h ago`;
  return `${Math.floor(passed / 86400)} days ago`;
}
