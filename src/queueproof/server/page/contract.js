// The contract as a card: the classes, and for the one chosen what may vary without changing an answer, and at what price.

import { byId, count, element, fill, rate, seconds } from "./dom.js";

const ORDER = ["best-effort", "batch", "request", "portable"];

export class ContractCard {
  constructor() {
    this.listeners = [];
    this.chosen = null;
    byId("ask-class").addEventListener("change", (event) => this.choose(event.target.value));
  }

  show({ contract, axes, default_class: standard }) {
    this.contract = contract;
    this.axes = axes;
    const offered = new Map(contract.offers.map((offer) => [offer.class, offer]));
    const refused = new Map((contract.refused ?? []).map((refusal) => [refusal.class, refusal.reason]));
    const legend = byId("classes").querySelector("legend");
    fill(byId("classes"), legend, ...ORDER.map((name) => this.tab(name, offered.get(name), refused.get(name), standard)));
    fill(byId("ask-class"), ...contract.offers.map((offer) => element("option", { value: offer.class }, offer.class)));
    this.choose(offered.has(this.chosen) ? this.chosen : standard);
  }

  tab(name, offer, reason, standard) {
    const input = element("input", {
      type: "radio", name: "class", value: name, id: `class-${name}`, disabled: !offer, onchange: () => this.choose(name),
    });
    const note = offer ? (name === standard ? "the default here" : "on offer") : (reason ?? this.instead(name));
    return element("div", { class: offer ? "tab" : "tab off" }, input,
      element("label", { for: `class-${name}` }, element("strong", {}, name), element("small", {}, note)));
  }

  // Who asks for a class that is not on offer gets the weakest that keeps all of its promises.
  instead(name) {
    const offered = new Set(this.contract.offers.map((offer) => offer.class));
    const stronger = ORDER.slice(ORDER.indexOf(name)).find((candidate) => offered.has(candidate));
    return stronger ? `who asks for it gets ${stronger}` : "not on offer here";
  }

  choose(name) {
    const offer = this.contract.offers.find((candidate) => candidate.class === name);
    this.chosen = name;
    byId(`class-${name}`).checked = true;
    byId("ask-class").value = name;
    const { headline, lead } = this.promise(offer);
    byId("headline").textContent = headline;
    byId("lead").textContent = lead;
    const held = new Set(offer.axes);
    fill(byId("axes"), ...this.axes.map((axis) => this.axis(axis, held.has(axis.name))), this.price(offer));
    fill(byId("terms"), "Class ", element("strong", {}, offer.class), ", computed in the arithmetic ",
      element("strong", {}, offer.arithmetic), `, keeps ${count(held.size, "axis", "axes")} of ${this.axes.length}:`);
  }

  promise(offer) {
    const { model, device } = this.contract;
    const where = `${model.name} (${model.dtype}) on ${device}.`;
    if (!offer.axes.length) {
      return {
        headline: "Fast, and nothing promised",
        lead: `In this class the libraries' own kernels answer, and who else is in the batch may change your answer. ${where}`,
      };
    }
    return {
      headline: "Your answer, whoever else is in the queue",
      lead: `Token ids and log-probabilities stay the same to the last bit, however the server was busy. ${where}`,
    };
  }

  axis(axis, held) {
    return element("li", { class: held ? "axis held" : "axis" },
      element("span", { class: "mark", "aria-hidden": "true" }, held ? "✓" : "~"),
      element("strong", {}, axis.name),
      element("span", { class: "what" }, axis.meaning),
      element("span", { class: "says" }, held ? "may vary: same answer" : "may change the answer"));
  }

  price({ class: name, price }) {
    let what = "Not measured on this server. The option --price measures it at start-up.";
    let says = "unknown";
    if (price) {
      const speed = price.tokens_per_s ? [`${rate(price.tokens_per_s)} tokens/s`] : [];
      const pace = price.tpot_ms ? [`${seconds(price.tpot_ms / 1000)} from token to token`] : [];
      what = [...speed, ...pace, `measured on ${price.measured_on}`].join(", ");
      says = name === "best-effort" ? "what the others are compared with" : comparison(price.throughput_ratio);
    }
    return element("li", { class: "axis price" },
      element("span", { class: "mark", "aria-hidden": "true" }, "$"),
      element("strong", {}, "the price"),
      element("span", { class: "what" }, what),
      element("span", { class: "says" }, says));
  }
}

function comparison(ratio) {
  const percent = Math.round(Math.abs(ratio - 1) * 100);
  if (percent === 0) return "as fast as best-effort";
  if (ratio >= 2) return `${ratio.toFixed(1)} times as fast as best-effort`;
  return `${percent} % ${ratio < 1 ? "slower" : "faster"} than best-effort`;
}
