// Two answers, compared to the last bit. Nothing here touches the page.

const bits = new DataView(new ArrayBuffer(8));

// The bits of a number, as hexadecimal digits: 0 and -0 differ, a NaN equals itself.
export function bitsOf(value) {
  bits.setFloat64(0, value);
  return bits.getBigUint64(0).toString(16).padStart(16, "0");
}

// An answer is {ids: [token id], logprobs: [number], bytes: [[byte]], finish, digest}. A log-probability is a 32-bit float;
// JSON carries it as a decimal number that gives back the same bits.
//
// {same, position, what}: position of the first difference in tokens; what differs there: "token", "logprob", "length",
// "digest" (beyond what the tokens and log-probabilities show) or null.
export function compare(a, b) {
  const shared = Math.min(a.ids.length, b.ids.length);
  for (let i = 0; i < shared; i++) {
    if (a.ids[i] !== b.ids[i]) return { same: false, position: i, what: "token" };
    if (bitsOf(a.logprobs[i]) !== bitsOf(b.logprobs[i])) return { same: false, position: i, what: "logprob" };
  }
  if (a.ids.length !== b.ids.length) return { same: false, position: shared, what: "length" };
  if (a.digest && b.digest && a.digest !== b.digest) return { same: false, position: null, what: "digest" };
  return { same: true, position: null, what: null };
}

// While the tokens agree: {agreed, apart, gap}: how many do, how many of their log-probabilities differ, and by how much.
export function distance(a, b) {
  let agreed = 0, apart = 0, gap = 0;
  while (agreed < Math.min(a.ids.length, b.ids.length) && a.ids[agreed] === b.ids[agreed]) {
    if (bitsOf(a.logprobs[agreed]) !== bitsOf(b.logprobs[agreed])) apart++;
    gap = Math.max(gap, Math.abs(a.logprobs[agreed] - b.logprobs[agreed]));
    agreed++;
  }
  return { agreed, apart, gap };
}

// The text of an answer in three parts: before the token at `position`, that token, and the rest.
export function split(answer, position) {
  const text = (from, to) => new TextDecoder().decode(new Uint8Array(answer.bytes.slice(from, to).flat()));
  return [text(0, position), text(position, position + 1), text(position + 1)];
}

// The label of a request in the timeline: 32-bit FNV-1a of the id of its answer (server/timeline.py).
export function labelOf(responseId) {
  let value = 0x811c9dc5;
  for (const byte of new TextEncoder().encode(responseId)) {
    value = Math.imul(value ^ byte, 0x01000193) >>> 0;
  }
  return value.toString(16).padStart(8, "0");
}
