// The others: questions of many lengths, so that prefills and decodes mix.

const SHORT = [
  "Name three rivers.",
  "What is a prime number?",
  "Write a haiku about rain.",
  "Translate 'good morning' into French.",
  "Why do cats purr?",
  "How does a bicycle stay upright?",
  "List the planets in order.",
  "What does a compiler do?",
  "Suggest a name for a bakery.",
  "Explain rainbows to a child.",
  "Give me a recipe for pancakes.",
  "What is the capital of Portugal?",
];

const LONG = [
  "The river rose twice in spring. The first flood came in March after two weeks of warm rain on deep snow and reached "
    + "the lower road, but not the houses. The second followed a single night of heavy rain at the end of April; the "
    + "ground was still full of water, so almost all of it ran off, and by morning the level at the old bridge was two "
    + "metres above normal. Eleven cellars were flooded and one barn was lost. Nobody was hurt, since the warning went "
    + "out nine hours before the peak. The council will rebuild the footbridge one metre higher. Summarise this report.",
  "The lighthouse keeper had not spoken to anyone for eleven days when the boat came. It was a small boat, painted "
    + "green, and it came from the wrong side, from the open sea. A woman was rowing it, without haste, looking over her "
    + "shoulder only once or twice. The keeper put down the brass polish, went down the hundred and nine steps and out to "
    + "the landing. He had thought of many things to say, but when she threw him the rope he only caught it and made it "
    + "fast. Continue this story with the next paragraph.",
];

// The question of the i-th of them: every third is long, and no two are alike. longest: in characters, of which a token
// has one at least.
export function crowdQuestion(i, longest) {
  const list = i % 3 === 2 ? LONG : SHORT;
  return `(${i + 1}) ${list[Math.floor(i / 3) % list.length]}`.slice(0, longest);
}
