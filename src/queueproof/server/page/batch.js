// The picture of the running batch: time runs to the right, each request has a row, prefill is striped and decode is solid.

import { byId, count, element, fill } from "./dom.js";
import { labelOf } from "./compare.js";

const WINDOW = 20; // seconds, less on a narrow screen
const GAP = 1.5; // seconds that a row stays empty before another request gets it
const LOST = 1.0; // seconds without a sample after which nothing is known
const HUES = 6;

const whose = new Map(); // label of a request → "you" or "crowd": those that this page sent

// Remembers a request of this page by the id of its answer.
export function claim(responseId, role) {
  const label = labelOf(responseId);
  whose.set(label, role);
  if (whose.size > 2000) whose.delete(whose.keys().next().value);
  return label;
}

function roleOf(label) {
  if (label.startsWith("~")) return "replay";
  return whose.get(label.slice(0, 8)) ?? "other";
}

const ROLES = { you: "you", crowd: "your crowd", other: "another user", replay: "a replay" };

export class BatchPicture {
  // now: seconds on the server's clock.
  constructor(now) {
    this.canvas = byId("lanes");
    this.now = now;
    this.lanes = new Map();
    this.sizes = [];
    this.latest = null;
    this.paused = false;
    this.message = "Connecting.";
    this.quiet = matchMedia("(prefers-reduced-motion: reduce)");
    this.frame = this.frame.bind(this);
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    byId("pause").addEventListener("click", () => this.pause());
    this.restyle();
  }

  pause() {
    this.paused = !this.paused;
    byId("pause").setAttribute("aria-pressed", String(this.paused));
    byId("pause").textContent = this.paused ? "Go on" : "Pause";
    this.pausedAt = this.now();
    this.wake();
  }

  // After a change of the theme.
  restyle() {
    const style = getComputedStyle(document.documentElement);
    const read = (name) => style.getPropertyValue(name).trim();
    this.colours = {
      ink: read("--ink"), muted: read("--muted"), line: read("--line"), card: read("--card"), area: read("--area"),
      you: read("--you"), replay: read("--replay"),
      lanes: Array.from({ length: HUES }, (_, i) => read(`--lane-${i}`)),
    };
    this.stripes = new Map();
    this.draw();
  }

  add(sample) {
    const { t, engines } = sample;
    for (const [number, engine] of engines.entries()) {
      const here = new Set();
      for (const [label, phase] of engine.members) {
        const name = `${number}:${label}`;
        here.add(name);
        this.extend(name, number, label, phase, t);
      }
      for (const [name, lane] of this.lanes) {
        if (lane.engine === number && lane.open && !here.has(name)) {
          lane.open = false;
          lane.pieces.at(-1).to = t;
        }
      }
    }
    this.sizes.push({ t, sizes: engines.map((engine) => engine.running) });
    this.latest = sample;
    this.forget(t - WINDOW - 5);
    this.wake();
  }

  extend(name, engine, label, phase, t) {
    let lane = this.lanes.get(name);
    if (!lane) {
      lane = { engine, label, slot: this.freeSlot(engine, t), pieces: [], open: true };
      this.lanes.set(name, lane);
    }
    const last = lane.pieces.at(-1);
    if (last && t - last.to < LOST) {
      last.to = t;
      if (last.phase !== phase) lane.pieces.push({ from: t, to: t, phase });
    } else {
      lane.pieces.push({ from: t, to: t, phase });
    }
    lane.open = true;
  }

  freeSlot(engine, t) {
    const taken = new Set();
    for (const lane of this.lanes.values()) {
      if (lane.engine === engine && (lane.open || lane.pieces.at(-1).to > t - GAP)) taken.add(lane.slot);
    }
    let slot = 0;
    while (taken.has(slot)) slot++;
    return slot;
  }

  forget(before) {
    for (const [name, lane] of this.lanes) {
      if (!lane.open && lane.pieces.at(-1).to < before) this.lanes.delete(name);
    }
    while (this.sizes.length > 1 && this.sizes[1].t < before) this.sizes.shift();
  }

  wake() {
    if (this.quiet.matches) this.draw();
    else if (!this.waiting) this.waiting = requestAnimationFrame(this.frame);
  }

  frame() {
    this.waiting = null;
    this.draw();
    if (!this.paused && this.lanes.size) this.wake();
  }

  draw() {
    const { canvas, colours } = this;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    const scale = window.devicePixelRatio || 1;
    if (!width || !colours) return;
    if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(height * scale);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const span = width < 560 ? 10 : WINDOW;
    const end = this.paused ? this.pausedAt : this.now() - 0.1;
    const x = (t) => width - 4 - ((end - t) / span) * (width - 4);
    const strip = 44, axis = 18;
    this.grid(pen, x, end, span, height - axis, width);
    this.rows(pen, x, end, span, height - strip - axis - 8);
    this.strip(pen, x, end, span, height - axis - strip, strip, width);
    if (!this.lanes.size) {
      pen.fillStyle = colours.muted;
      pen.font = "14px system-ui, sans-serif";
      pen.textAlign = "center";
      pen.fillText(this.message, width / 2, (height - strip - axis) / 2);
    }
  }

  grid(pen, x, end, span, bottom, width) {
    pen.strokeStyle = this.colours.line;
    pen.fillStyle = this.colours.muted;
    pen.font = "11px system-ui, sans-serif";
    pen.lineWidth = 1;
    for (let back = 0; back <= span; back += 5) {
      const at = Math.round(x(end - back)) - 0.5;
      pen.beginPath();
      pen.moveTo(at, 0);
      pen.lineTo(at, bottom);
      pen.stroke();
      pen.textAlign = back === 0 ? "right" : back === span ? "left" : "center";
      const edge = back === 0 ? width - 2 : back === span ? 2 : at;
      pen.fillText(back === 0 ? "now" : `${back} s ago`, edge, bottom + 14);
    }
  }

  rows(pen, x, end, span, height) {
    const bands = new Map(); // engine → rows
    for (const lane of this.lanes.values()) {
      if (lane.open || lane.pieces.at(-1).to > end - span) {
        bands.set(lane.engine, Math.max(bands.get(lane.engine) ?? 0, lane.slot + 1));
      }
    }
    const several = (this.latest?.engines.length ?? 1) > 1;
    const order = [...bands.keys()].sort();
    const title = several ? 16 : 2;
    const rows = order.reduce((sum, engine) => sum + bands.get(engine), 0);
    const pitch = Math.min(22, (height - title * order.length) / Math.max(rows, 8));
    let top = 0;
    for (const engine of order) {
      if (several) {
        pen.fillStyle = this.colours.muted;
        pen.font = "11px system-ui, sans-serif";
        pen.textAlign = "left";
        pen.fillText(this.latest.engines[engine].arithmetic, 2, top + 12);
      }
      top += title;
      for (const lane of this.lanes.values()) {
        if (lane.engine === engine) this.lane(pen, lane, x, end, span, top + lane.slot * pitch, pitch);
      }
      top += bands.get(engine) * pitch;
    }
  }

  lane(pen, lane, x, end, span, top, pitch) {
    const role = roleOf(lane.label);
    const colour = this.colourOf(lane.label, role);
    const height = Math.max(2, pitch - Math.min(4, pitch / 4));
    const seen = this.latest ? Math.min(end, this.latest.t + LOST) : end;
    let start = null, widest = 0;
    for (const [i, piece] of lane.pieces.entries()) {
      const to = lane.open && i === lane.pieces.length - 1 ? Math.max(piece.to, seen) : piece.to;
      if (to < end - span || piece.from > end) continue;
      const left = Math.max(x(piece.from), -6), right = Math.max(Math.min(x(to), x(end)), left + 2);
      if (right - left > widest) [start, widest] = [left, right - left];
      pen.beginPath();
      pen.roundRect(left, top, right - left, height, Math.min(4, height / 3));
      pen.fillStyle = piece.phase === "p" ? this.striped(pen, colour) : colour;
      pen.fill();
      if (piece.phase === "p" || role === "you") {
        pen.strokeStyle = role === "you" ? this.colours.ink : colour;
        pen.lineWidth = role === "you" ? 1.5 : 1;
        pen.stroke();
      }
    }
    if (role === "you" && height >= 9 && widest > 30) {
      pen.font = "600 11px system-ui, sans-serif";
      pen.textAlign = "left";
      const left = Math.max(start, 0) + 6;
      pen.lineWidth = 3;
      pen.strokeStyle = colour;
      pen.strokeText("you", left, top + height / 2 + 4);
      pen.fillStyle = "#fff";
      pen.fillText("you", left, top + height / 2 + 4);
    }
  }

  colourOf(label, role) {
    if (role === "you") return this.colours.you;
    if (role === "replay") return this.colours.replay;
    if (role === "other") return this.colours.muted;
    let sum = 0;
    for (const letter of label) sum = (sum * 31 + letter.charCodeAt(0)) % 1009;
    return this.colours.lanes[sum % HUES];
  }

  striped(pen, colour) {
    if (!this.stripes.has(colour)) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 8;
      const inner = tile.getContext("2d");
      inner.fillStyle = this.colours.card;
      inner.fillRect(0, 0, 8, 8);
      inner.strokeStyle = colour;
      inner.lineWidth = 2.4;
      for (const shift of [-8, 0, 8]) {
        inner.beginPath();
        inner.moveTo(shift - 1, 9);
        inner.lineTo(shift + 9, -1);
        inner.stroke();
      }
      this.stripes.set(colour, pen.createPattern(tile, "repeat"));
    }
    return this.stripes.get(colour);
  }

  // The number of sequences in the batch, as an area.
  strip(pen, x, end, span, top, height, width) {
    const total = (entry) => entry.sizes.reduce((sum, size) => sum + size, 0);
    const shown = this.sizes.filter((entry, i) => entry.t <= end && (this.sizes[i + 1]?.t ?? Infinity) > end - span);
    const most = Math.max(0, ...shown.map(total));
    if (!most) return;
    const y = (size) => top + height - (size / most) * (height - 14);
    pen.beginPath();
    pen.moveTo(x(shown[0].t), top + height);
    for (const [i, entry] of shown.entries()) {
      pen.lineTo(x(entry.t), y(total(entry)));
      pen.lineTo(x(Math.min(shown[i + 1]?.t ?? end, end)), y(total(entry)));
    }
    pen.lineTo(x(end), top + height);
    pen.closePath();
    pen.fillStyle = this.colours.area;
    pen.fill();
    pen.fillStyle = this.colours.muted;
    pen.font = "11px system-ui, sans-serif";
    pen.textAlign = "left";
    const words = `sequences in the batch: ${most} at most`;
    const wide = pen.measureText(words).width;
    pen.fillStyle = this.colours.card;
    pen.fillRect(0, top, wide + 8, 13);
    pen.fillStyle = this.colours.muted;
    pen.fillText(words, 2, top + 10);
  }

  // The same in words and as a table; called once a second.
  describe() {
    const engines = this.latest?.engines ?? [];
    const members = engines.flatMap((engine) => engine.members.map((member) => [...member, engine.arithmetic]));
    const running = engines.reduce((sum, engine) => sum + engine.running, 0);
    const waiting = engines.reduce((sum, engine) => sum + engine.waiting, 0);
    const prefill = members.filter(([, phase]) => phase === "p").length;
    let words = "Nobody at the moment.";
    if (running) {
      const phases = `${prefill} in prefill, ${running - prefill} in decode`;
      words = running === 1 ? "One request, alone in its batch." : `${running} sequences now: ${phases}.`;
      if (waiting) words += ` ${count(waiting, "more waits", "more wait")}.`;
    }
    byId("batch-now").textContent = words;
    this.canvas.setAttribute("aria-label", `The running batch over the last seconds. ${words}`);
    if (!byId("members").closest("details").open) return;
    const rows = members.map(([label, phase, tokens, length, arithmetic]) =>
      element("tr", {},
        element("td", {}, element("code", {}, label)),
        element("td", {}, ROLES[roleOf(label)]),
        element("td", {}, phase === "p" ? "prefill" : "decode"),
        element("td", { class: "number" }, String(tokens)),
        element("td", { class: "number" }, String(length)),
        element("td", {}, arithmetic)));
    fill(byId("members").tBodies[0],
      ...(rows.length ? rows : [element("tr", {}, element("td", { colspan: "6" }, "No request is running."))]));
  }
}
