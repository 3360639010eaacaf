// Small plots of the last minutes: one value or two, a line each, with words for those who cannot see them.

import { byId, element, rate, seconds } from "./dom.js";

const SECONDS = 120;
const GAP = 8; // seconds without a value that a line goes across
const NONE = `nothing in the last ${SECONDS / 60} minutes`;

const PLOTS = [
  {
    title: "Tokens per second", unit: (v) => rate(v),
    lines: [{ name: "generated", read: (s) => s.token_rate }],
  },
  {
    title: "Time to first token", unit: seconds,
    lines: [{ name: "median", read: (s) => s.ttft?.[0] ?? null }, { name: "99 %", read: (s) => s.ttft?.[1] ?? null }],
  },
  {
    title: "Time between tokens", unit: seconds,
    lines: [{ name: "median", read: (s) => s.itl?.[0] ?? null }, { name: "99 %", read: (s) => s.itl?.[1] ?? null }],
  },
  {
    title: "KV cache in use", unit: (v) => (v === null ? "–" : `${(v * 100).toFixed(v < 0.1 ? 1 : 0)} %`), top: 0.02,
    lines: [{ name: "used", read: (s) => s.kv }],
  },
];

export class Plots {
  constructor() {
    this.points = [];
    this.plots = PLOTS.map((plot) => {
      const value = element("p", { class: "value" }, "–");
      const detail = element("p", { class: "muted small" }, NONE);
      const canvas = element("canvas", { role: "img", "aria-label": plot.title });
      byId("plots").append(element("article", { class: "card plot" }, element("h3", {}, plot.title), value, canvas, detail));
      new ResizeObserver(() => this.draw()).observe(canvas);
      return { ...plot, value, detail, canvas };
    });
    this.restyle();
  }

  restyle() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.colours = { first: read("--accent"), second: read("--muted"), area: read("--area"), line: read("--line") };
    this.draw();
  }

  add(second) {
    this.points.push(second);
    while (this.points.length > 1 && this.points[0].t < second.t - SECONDS) this.points.shift();
  }

  draw() {
    for (const plot of this.plots ?? []) this.one(plot);
  }

  one({ canvas, value, detail, title, unit, lines, top }) {
    const { points, colours } = this;
    const series = lines.map(({ read }) => points.map((point) => ({ t: point.t, v: read(point) })));
    const known = series[0].filter(({ v }) => v !== null);
    const last = known.at(-1)?.v ?? null;
    const most = Math.max(...series.flat().map(({ v }) => v ?? 0), 0);
    value.textContent = unit(known.length ? last : null);
    const second = lines[1] ? series[1].filter(({ v }) => v !== null).at(-1)?.v : null;
    const parts = known.length && most > 0 ? [`highest ${unit(most)}`] : [NONE];
    if (second !== null && second !== undefined) parts.unshift(`${lines[1].name} within ${unit(second)}`);
    detail.textContent = parts.join(", ");
    canvas.setAttribute("aria-label", `${title}: ${value.textContent}. ${detail.textContent}.`);

    const width = canvas.clientWidth, height = canvas.clientHeight, scale = window.devicePixelRatio || 1;
    if (!width) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(0, height - 0.5);
    pen.lineTo(width, height - 0.5);
    pen.stroke();
    if (!points.length) return;
    const end = points.at(-1).t;
    const x = (t) => width - ((end - t) / SECONDS) * width;
    const y = (v) => height - 2 - (v / Math.max(most, top ?? 0, 1e-9)) * (height - 6);
    for (const [i, line] of series.entries()) {
      for (const run of runs(line)) {
        if (i === 0) area(pen, run, x, y, height, colours.area);
        pen.strokeStyle = i === 0 ? colours.first : colours.second;
        pen.lineWidth = i === 0 ? 2 : 1;
        pen.setLineDash(i === 0 ? [] : [3, 3]);
        pen.beginPath();
        for (const { t, v } of run) pen.lineTo(x(t), y(v));
        if (run.length === 1) pen.lineTo(x(run[0].t) + 2, y(run[0].v)); // a dot
        pen.stroke();
      }
    }
    pen.setLineDash([]);
  }
}

// Stretches without a long gap: nothing is drawn for a time in which nothing happened.
function runs(line) {
  const found = [];
  for (const point of line) {
    if (point.v === null) continue;
    const last = found.at(-1)?.at(-1);
    if (last && point.t - last.t < GAP) found.at(-1).push(point);
    else found.push([point]);
  }
  return found;
}

function area(pen, run, x, y, height, colour) {
  pen.beginPath();
  pen.moveTo(x(run[0].t), height);
  for (const { t, v } of run) pen.lineTo(x(t), y(v));
  pen.lineTo(x(run.at(-1).t), height);
  pen.closePath();
  pen.fillStyle = colour;
  pen.fill();
}
