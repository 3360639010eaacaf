// The last receipts, and a button that computes one again.

import { Failure, get, post } from "./api.js";
import { ago, byId, count, element, fill, show } from "./dom.js";

const ASKED = 100;
const SHOWN = 10;
const KEPT = 6; // of those shown: a crowd makes many, which shall not hide those that its user is about

// The public name of a receipt: the first eight digits of its id.
export const handleOf = (id) => id.replace(/^rcpt-/, "").slice(0, 8);

export class Receipts {
  // now: seconds on the server's clock.
  constructor({ now, locked }) {
    Object.assign(this, { now, locked });
    this.verdicts = new Map(); // handle → {state, words}: of replays from this page
    this.own = new Map(); // handle → words, of receipts that this page made
    this.list = [];
  }

  claim(made) {
    for (const [id, words] of made) if (id) this.own.set(handleOf(id), words);
    this.soon();
  }

  // Asks again, once for many calls in a row.
  soon() {
    this.timer ??= setTimeout(() => {
      this.timer = null;
      this.load();
    }, 400);
  }

  async load() {
    try {
      this.list = this.few((await get(`v1/receipts?limit=${ASKED}`)).data);
      this.draw();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) this.locked();
      this.message(`The receipts could not be read: ${error.message}.`, true);
    }
  }

  // The newest, and among them those of this page, those that were replayed here and the one in focus.
  few(list) {
    const focused = document.activeElement?.dataset?.handle;
    const wanted = ({ handle }) => handle === focused || this.verdicts.has(handle) || this.own.has(handle);
    const kept = list.filter(wanted).slice(0, KEPT);
    const others = list.filter((receipt) => !kept.includes(receipt)).slice(0, SHOWN - kept.length);
    return list.filter((receipt) => kept.includes(receipt) || others.includes(receipt));
  }

  off() {
    this.message("This server makes no receipts; start it with --receipts full to have them.");
    this.soon = this.load = () => {};
  }

  message(text, isError = false) {
    byId("receipts-message").textContent = text;
    byId("receipts-message").dataset.kind = isError ? "error" : "";
    show(byId("receipts-message"), true);
  }

  draw() {
    show(byId("receipts-table"), this.list.length > 0);
    if (!this.list.length) {
      this.message("None yet. Every answer makes one.");
      return;
    }
    show(byId("receipts-message"), false);
    const focused = document.activeElement?.dataset?.handle;
    fill(byId("receipts-table").tBodies[0], ...this.list.map((receipt) => this.row(receipt)));
    if (focused) this.button(focused)?.focus();
  }

  button(handle) {
    return byId("receipts-table").querySelector(`button[data-handle="${CSS.escape(handle)}"]`);
  }

  row(receipt) {
    const { handle } = receipt;
    const cell = (name, ...children) => element("td", { "data-name": name }, ...children);
    return element("tr", {},
      element("th", { scope: "row", "data-name": "Receipt" }, element("code", {}, handle),
        this.own.has(handle) ? element("small", { class: "tag" }, this.own.get(handle)) : ""),
      cell("Class", receipt.class),
      cell("Arithmetic", receipt.arithmetic),
      cell("Tokens", `${receipt.prompt_tokens} → ${receipt.tokens}`),
      cell("Made", element("time", { datetime: new Date(receipt.created * 1000).toISOString(), "data-t": receipt.created },
        ago(receipt.created, this.now()))),
      cell("Computed again", this.action(receipt)));
  }

  action({ handle, verdict }) {
    const known = this.verdicts.get(handle) ?? (verdict ? { state: verdict, words: WORDS[verdict] ?? verdict } : null);
    const label = known?.state === "busy" ? "Replaying" : known ? "Again" : "Replay";
    const button = element("button", {
      type: "button", "data-handle": handle, "aria-label": `${label} receipt ${handle}`, disabled: known?.state === "busy",
      onclick: () => this.replay(handle),
    }, label);
    const said = element("span", { class: "said", role: "status", "data-state": known?.state }, known?.words ?? "");
    return element("div", { class: "replay" }, button, said);
  }

  async replay(handle) {
    this.set(handle, { state: "busy", words: "computing it alone" });
    try {
      this.set(handle, outcome(await post("v1/replay", { handle })));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) this.locked();
      this.set(handle, { state: "unknown", words: `cannot tell: ${error.message}` });
    }
  }

  set(handle, verdict) {
    this.verdicts.set(handle, verdict);
    this.draw();
  }

  // Called once a second.
  tick() {
    for (const time of byId("receipts-table").querySelectorAll("time")) {
      time.textContent = ago(Number(time.dataset.t), this.now());
    }
  }
}

const WORDS = { same: "✓ same", different: "✗ different", unknown: "? cannot tell" };

function outcome(result) {
  const { verdict } = result;
  if (verdict === "same") {
    return { state: "same", words: `✓ same, ${count(result.tokens, "token")}` };
  }
  if (verdict === "different") {
    const { step } = result;
    return { state: "different", words: step === undefined ? "✗ different" : `✗ different at token ${step + 1}` };
  }
  return { state: "unknown", words: `? cannot tell: ${result.reason ?? "no reason was given"}` };
}
