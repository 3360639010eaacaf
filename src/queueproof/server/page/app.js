// The page: reads what the server is, follows its timeline, and joins the parts.

import { Failure, events, get, key } from "./api.js";
import { Ask } from "./ask.js";
import { BatchPicture } from "./batch.js";
import { ContractCard } from "./contract.js";
import { byId, show } from "./dom.js";
import { Plots } from "./plots.js";
import { Receipts } from "./receipts.js";

const RETRY = 2000;
const WITNESS = 2500; // milliseconds to wait for what the server says of a request that ended

// The server's clock. Events arrive late, never early: the largest offset of the last ones is nearest to the truth.
const clock = {
  offsets: [],
  heard(t) {
    this.offsets.push(t - Date.now() / 1000);
    if (this.offsets.length > 100) this.offsets.shift();
    this.offset = Math.max(...this.offsets);
  },
  offset: 0,
  now() {
    return Date.now() / 1000 + this.offset;
  },
};

// Requests that ended, by label, and those who wait for one.
const ended = {
  known: new Map(),
  waiting: new Map(),
  heard(event) {
    this.known.set(event.label, event);
    if (this.known.size > 500) this.known.delete(this.known.keys().next().value);
    this.waiting.get(event.label)?.(event);
    this.waiting.delete(event.label);
  },
  of(label) {
    if (this.known.has(label)) return Promise.resolve(this.known.get(label));
    return new Promise((resolve) => {
      this.waiting.set(label, resolve);
      setTimeout(() => resolve(this.known.get(label) ?? null), WITNESS);
    });
  },
};

let state = null;
const contract = new ContractCard();
const picture = new BatchPicture(() => clock.now());
const plots = new Plots();
const receipts = new Receipts({ now: () => clock.now(), locked });
new Ask({
  state: () => state,
  chosen: () => contract.chosen,
  timeline: {
    running: () => (picture.latest?.engines ?? []).reduce((sum, engine) => sum + engine.running, 0),
    ended: (label) => ended.of(label),
  },
  done: (made) => receipts.claim(made),
  locked,
});

function status(kind, words) {
  byId("status").dataset.state = kind;
  byId("status").textContent = words;
}

let unlock = null;

// Shows the field for the key; the page goes on once one is given.
function locked() {
  show(byId("key-card"), true);
  byId("key-message").textContent = key.get()
    ? "The server does not know that key. Try another."
    : "It stays in this tab and is forgotten when the tab is closed.";
  status("key", "needs a key");
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set(byId("key").value.trim());
  byId("key").value = "";
  show(byId("key-card"), false);
  unlock?.();
});

byId("key-button").addEventListener("click", () => {
  key.forget();
  location.reload();
});

async function follow() {
  for (;;) {
    try {
      await connect();
      status("lost", "the server ended the connection; trying again");
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) {
        locked();
        byId("key").focus();
        await new Promise((resolve) => (unlock = resolve));
        continue;
      }
      status("lost", `${error.message}; trying again`);
      if (!state) byId("lead").textContent = `The server could not be read: ${error.message}. Trying again.`;
    }
    picture.message = "Not connected.";
    picture.draw();
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}

async function connect() {
  const stream = events("live/events");
  let next = stream.next(); // listen first, so that nothing is missed between the two
  next.catch(() => {}); // awaited below; the state may fail before
  const { about, timeline } = await get("live/state");
  present(about, timeline);
  for (;;) {
    let item;
    try {
      item = await next;
    } catch (error) {
      if (error instanceof Failure) throw error;
      throw new Failure(0, "the connection was lost");
    }
    if (item.done) return;
    hear(JSON.parse(item.value.data));
    next = stream.next();
  }
}

function present(found, timeline) {
  const first = state === null;
  state = found;
  byId("model").textContent = found.model;
  byId("build").textContent = `Queueproof ${found.build}`;
  document.title = `${found.model} · Queueproof`;
  show(byId("key-card"), false);
  show(byId("key-button"), Boolean(key.get()));
  const stopped = found.engines.filter((engine) => !engine.running);
  if (stopped.length) status("lost", `the engine of ${stopped.map((e) => e.arithmetic).join(", ")} has ended`);
  else status("live", "live");
  picture.message = "No request is running. Ask something above.";
  contract.show(found);
  if (first) {
    timeline.samples.forEach((event) => picture.add(event));
    timeline.seconds.forEach((event) => plots.add(event));
    timeline.ended.forEach((event) => ended.heard(event));
  }
  picture.describe();
  picture.draw();
  plots.draw();
  if (found.receipts === "off") receipts.off();
  else receipts.load();
}

function hear(event) {
  clock.heard(event.t);
  if (event.type === "sample") {
    picture.add(event);
  } else if (event.type === "second") {
    plots.add(event);
    plots.draw();
    picture.describe();
    picture.wake();
    receipts.tick();
  } else if (event.type === "ended") {
    ended.heard(event);
    receipts.soon();
  }
}

// The theme: that of the system, or the other one. Only the choice is kept.
const THEMES = ["auto", "light", "dark"];
let theme = localStorage.getItem("queueproof-theme") ?? "auto";

function applyTheme() {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  picture.restyle();
  plots.restyle();
}

byId("theme").addEventListener("click", () => {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  localStorage.setItem("queueproof-theme", theme);
  applyTheme();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);

applyTheme();
follow();
