// Asks a question alone and again inside a crowd, and compares the two answers.

import { Failure, events, get } from "./api.js";
import { claim } from "./batch.js";
import { compare, distance, split } from "./compare.js";
import { crowdQuestion } from "./crowd.js";
import { byId, count, element, fill, seconds, show } from "./dom.js";
import { handleOf } from "./receipts.js";

const SEED = 7;
const WARM_UP = 2500; // milliseconds that the crowd has to arrive before the question does
const LATE = 200; // milliseconds after it, and twice that, when the rest of the crowd arrives

export class Ask {
  // state(): what /live/state said. timeline: {running(), ended(label)}. chosen(): a class. locked(): a key is needed.
  // done(receipts): called at the end with [[id of a receipt, whose it is]].
  constructor({ state, timeline, chosen, done, locked }) {
    Object.assign(this, { state, timeline, chosen, done, locked });
    this.controller = null;
    byId("ask-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.run();
    });
    byId("question").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        byId("ask-form").requestSubmit();
      }
    });
    byId("stop").addEventListener("click", () => this.controller?.abort());
  }

  async run() {
    if (this.controller || !this.state()) return;
    const controller = (this.controller = new AbortController());
    const settings = {
      question: byId("question").value,
      class: this.chosen(),
      crowd: Number(byId("crowd").value),
      tokens: this.fitting(Number(byId("tokens").value)),
      temperature: Number(byId("sampling").value),
    };
    this.busy(true);
    const made = [];
    try {
      const alone = await this.alone(settings, controller.signal);
      made.push([alone.receipt, "yours, alone"]);
      const crowded = await this.inCrowd(settings, controller.signal);
      made.push([crowded.receipt, "yours, in the crowd"]);
      this.say("Comparing.");
      await Promise.all([this.witness(alone), this.witness(crowded)]);
      this.judge(settings, alone, crowded);
      this.say("Done. Both receipts are below.", this.state().receipts === "off" ? "Done." : null);
    } catch (error) {
      if (error.name === "AbortError") this.say("Stopped.");
      else if (error instanceof Failure) this.fail(error);
      else throw error;
    } finally {
      controller.abort();
      this.controller = null;
      this.busy(false);
      this.done(made);
    }
  }

  busy(asking) {
    const held = document.activeElement;
    show(byId("go"), !asking);
    show(byId("stop"), asking);
    byId("ask").setAttribute("aria-busy", String(asking));
    if (asking && held === byId("go")) byId("stop").focus();
    if (!asking && (held === byId("stop") || held === document.body)) byId("go").focus({ preventScroll: true });
    if (!asking) return;
    show(byId("verdict"), false);
    show(byId("answers"), true);
    for (const side of ["alone", "crowd"]) {
      fill(byId(`${side}-text`));
      fill(byId(`${side}-facts`), side === "alone" ? "Waiting for the first token." : "Comes second.");
    }
  }

  say(text, instead = null) {
    byId("progress").textContent = instead ?? text;
  }

  fail(error) {
    if (error.status === 401) this.locked();
    const hint = error.status === 429 ? "The server is busy; try again in a moment" : "That did not work";
    this.say(`${hint}: ${error.message}`);
    byId("progress").dataset.kind = "error";
  }

  // Prompt and answer must fit a small model, too: no more than a third of it for either.
  fitting(tokens) {
    const room = Math.min(...this.state().engines.map((engine) => engine.max_model_len));
    return Math.max(8, Math.min(tokens, Math.floor(room / 3)));
  }

  async alone(settings, signal) {
    delete byId("progress").dataset.kind;
    this.say("First alone.");
    return this.stream("alone", settings, signal);
  }

  async inCrowd(settings, signal) {
    const { crowd } = settings;
    const others = new AbortController();
    const stopOthers = () => others.abort();
    signal.addEventListener("abort", stopOthers);
    const came = { refused: 0, reason: "" };
    try {
      const early = groups(crowd).slice(0, 2), late = groups(crowd).slice(2);
      this.say(`${count(early[1].to, "other arrives", "others arrive")}.`);
      for (const group of early) this.neighbours(group, settings, others.signal, came);
      const seats = this.state().engines.find((engine) => this.serves(engine, settings.class))?.max_num_seqs ?? 1;
      await this.until(() => this.timeline.running() >= Math.min(early[1].to, seats - 1), WARM_UP, signal);
      this.say(`The same question again, among ${count(crowd, "other")}.`);
      const timers = late.map((group, i) =>
        setTimeout(() => this.neighbours(group, settings, others.signal, came), LATE * (i + 1)));
      try {
        const answer = await this.stream("crowd", settings, signal);
        answer.came = came;
        return answer;
      } finally {
        timers.forEach(clearTimeout);
      }
    } finally {
      stopOthers();
      signal.removeEventListener("abort", stopOthers);
    }
  }

  serves(engine, name) {
    return this.state().contract.offers.some((offer) => offer.class === name && offer.arithmetic === engine.arithmetic);
  }

  async until(condition, patience, signal) {
    const end = performance.now() + patience;
    while (!condition() && performance.now() < end && !signal.aborted) {
      await new Promise((resolve) => setTimeout(resolve, 40));
    }
  }

  request(settings) {
    const { question, tokens } = settings;
    const common = {
      model: this.state().model, stream: true, temperature: settings.temperature, seed: SEED,
      determinism: settings.class, return_token_ids: true, stream_options: { include_usage: true },
    };
    return this.state().chat
      ? ["v1/chat/completions",
        { ...common, messages: [{ role: "user", content: question }], max_completion_tokens: tokens, logprobs: true }]
      : ["v1/completions", { ...common, prompt: question, max_tokens: tokens, logprobs: 0 }];
  }

  // Some of the crowd, in one request: a browser opens six connections to a server at most. Their answers are thrown away;
  // they go on until the question is answered.
  async neighbours({ from, to, share }, settings, signal, came) {
    const body = {
      model: this.state().model, stream: true, temperature: 0, ignore_eos: true, determinism: settings.class,
      prompt: Array.from({ length: to - from }, (_, i) => crowdQuestion(from + i, this.fitting(Infinity))),
      max_tokens: this.fitting(Math.round(settings.tokens * share)),
    };
    try {
      for await (const { data } of events("v1/completions", { body, signal })) {
        const id = data.startsWith("{") ? JSON.parse(data).id : null;
        if (id) claim(id, "crowd");
      }
    } catch (error) {
      if (error.name === "AbortError" || signal.aborted) return; // the question is answered, so they may leave
      came.refused += to - from;
      came.reason = error.message;
    }
  }

  async stream(side, settings, signal) {
    const [path, body] = this.request(settings);
    const answer = { ids: [], logprobs: [], bytes: [], text: "", receipt: null, digest: null, label: null, usage: null };
    const start = performance.now();
    for await (const { data } of events(path, { body, signal })) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Failure(500, chunk.error.message);
      answer.label ??= claim(chunk.id, "you");
      take(answer, chunk);
      if (answer.ids.length && answer.first === undefined) answer.first = (performance.now() - start) / 1000;
      const text = byId(`${side}-text`);
      text.textContent = answer.text;
      text.scrollTop = text.scrollHeight;
      if (answer.ids.length) byId(`${side}-facts`).textContent = count(answer.ids.length, "token");
    }
    answer.seconds = (performance.now() - start) / 1000;
    if (answer.receipt) await this.readReceipt(answer, signal);
    return answer;
  }

  // Its digest, which covers the log-sum-exps, too. Without it tokens and log-probabilities are compared all the same.
  async readReceipt(answer, signal) {
    try {
      answer.digest = (await get(`v1/receipts/${answer.receipt}`, signal)).receipt.answer.sha256;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      answer.unread = error.message;
    }
  }

  // How many shared the batch with it, as the server saw it.
  async witness(answer) {
    const ended = await this.timeline.ended(answer.label);
    answer.largest = ended?.largest ?? 0;
    answer.ended = ended;
  }

  judge(settings, alone, crowded) {
    for (const [side, answer] of [["alone", alone], ["crowd", crowded]]) {
      fill(byId(`${side}-facts`), ...facts(answer));
    }
    const found = compare(alone, crowded);
    if (!found.same && found.position !== null) {
      const position = parting(alone, crowded) ?? found.position;
      mark(byId("alone-text"), alone, position);
      mark(byId("crowd-text"), crowded, position);
    }
    const { state, title, words } = verdict(settings, alone, crowded, found);
    const box = byId("verdict");
    box.dataset.state = state;
    fill(box, element("strong", {}, title), " ", words);
    show(box, true);
  }
}

// The crowd in four groups, each with the length of its answers in terms of the question's: two come before, two after it.
function groups(crowd) {
  const ends = [0.35, 0.6, 0.8, 1].map((part) => Math.ceil(crowd * part));
  return ends.map((to, i) => ({ from: ends[i - 1] ?? 0, to, share: [2, 1.4, 1, 1.6][i] })).filter(({ from, to }) => to > from);
}

// Adds what a chunk of a stream says.
function take(answer, chunk) {
  if (chunk.usage) answer.usage = chunk.usage;
  const choice = chunk.choices?.[0];
  const declared = chunk.determinism ?? choice?.determinism;
  if (declared?.receipt) answer.receipt = declared.receipt;
  if (!choice) return;
  answer.text += choice.delta?.content ?? choice.text ?? "";
  answer.ids.push(...(choice.token_ids ?? []));
  const logprobs = choice.logprobs;
  for (const entry of logprobs?.content ?? []) {
    answer.logprobs.push(entry.logprob);
    answer.bytes.push(entry.bytes ?? [...new TextEncoder().encode(entry.token)]);
  }
  for (const [i, token] of (logprobs?.tokens ?? []).entries()) {
    answer.logprobs.push(logprobs.token_logprobs[i]);
    answer.bytes.push([...new TextEncoder().encode(token)]);
  }
}

function facts(answer) {
  const shared = answer.largest > 1
    ? `shared its batch with up to ${count(answer.largest - 1, "other")}`
    : answer.largest === 1 ? "alone in its batch" : "its batch was not seen";
  const cached = answer.usage?.prompt_tokens_details?.cached_tokens ?? 0;
  const prompt = answer.usage ? `${answer.usage.prompt_tokens} prompt tokens, ${cached} of them cached` : null;
  const speed = `${count(answer.ids.length, "token")} in ${seconds(answer.seconds)}`;
  const receipt = answer.receipt ? ["receipt ", element("code", {}, handleOf(answer.receipt))] : [];
  const rest = [[prompt], [speed], receipt].filter((part) => part[0]).flatMap((part) => [" · ", ...part]);
  return [element("strong", {}, shared), ...rest];
}

// Writes an answer with the token at which the two part marked. A token may be half of a character.
function mark(node, answer, position) {
  const [before, token, after] = split(answer, position);
  const shown = token === "" ? "(ends here)" : token.trim() === "" ? "␣" : token;
  const marked = element("mark", { title: `token ${position + 1}` }, shown);
  fill(node, before, marked, after);
  node.scrollTop = Math.max(0, marked.offsetTop - node.offsetTop - node.clientHeight / 2);
}

function verdict(settings, alone, crowded, found) {
  const shared = crowded.largest > 1;
  const notAlone = alone.largest > 1
    ? ` Others used the server meanwhile: the first answer shared its batch with up to ${alone.largest - 1}.` : "";
  const refused = crowded.came.refused
    ? ` ${crowded.came.refused} of the crowd were refused: ${crowded.came.reason}` : "";
  if (!found.same) {
    const promise = settings.class === "best-effort"
      ? "The class best-effort promises nothing about who shares the batch."
      : `This breaks the promise of the class ${settings.class}. Keep both receipts and report it.`;
    return { state: "different", title: difference(found, alone, crowded), words: `${detail(found, alone, crowded)} ${promise}${notAlone}` };
  }
  const equal = `${count(alone.ids.length, "token id")} and ${count(alone.logprobs.length, "log-probability", "log-probabilities")} are equal`;
  const digests = alone.digest && crowded.digest ? ", and so are the digests of both receipts" : "";
  const unread = alone.unread ?? crowded.unread;
  const receipts = unread ? ` A receipt could not be read: ${unread}.` : "";
  if (!shared) {
    return {
      state: "unknown", title: "Inconclusive.",
      words: `${equal}, but no other request was seen in its batch, so nothing was put to the test.`
        + ` Try a larger crowd or a longer answer.${refused}`,
    };
  }
  return {
    state: "same", title: "Same to the last bit.",
    words: `${equal}${digests}. In the crowd it shared its batch with up to ${count(crowded.largest - 1, "other")}.${receipts}${notAlone}${refused}`,
  };
}

// The token at which the words part, null if only the numbers do.
function parting(a, b) {
  const { agreed } = distance(a, b);
  return agreed === a.ids.length && agreed === b.ids.length ? null : agreed;
}

function difference({ what }, a, b) {
  if (what === "digest") return "Different digests.";
  const position = parting(a, b);
  return position === null ? "Same words, other numbers." : `Different from token ${position + 1} on.`;
}

function detail({ position, what }, a, b) {
  if (what === "digest") return "Tokens and log-probabilities are equal, the log-sum-exps in the receipts are not.";
  const { agreed, apart, gap } = distance(a, b);
  const numbers = apart
    ? `${apart} of ${count(agreed, "log-probability", "log-probabilities")} differ while the words agree,`
      + ` from token ${position + 1} on, by ${gap.toPrecision(2)} at most.`
    : "Everything before is equal.";
  const at = parting(a, b);
  if (at === null) return numbers;
  if (at === a.ids.length || at === b.ids.length) {
    return `One answer has ${count(a.ids.length, "token")}, the other ${b.ids.length}. ${numbers}`;
  }
  const shown = (answer) => `${JSON.stringify(split(answer, at)[1])} (${answer.ids[at]})`;
  return `${shown(a)} became ${shown(b)}. ${numbers}`;
}
