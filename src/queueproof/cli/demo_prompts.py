"""The 24 conversations of `queueproof demo`: one line to a few hundred tokens, six behind one long system prompt.

They are mixed on purpose: short ones finish while long ones are still in prefill, the shared beginning can be found
in a prefix cache, and those that ask for repetition let n-gram guesses be right.
"""

from __future__ import annotations

Conversation = list[dict[str, str]]

_BRIEF = "Answer in one or two plain sentences."

_LIBRARIAN = """You are the assistant of a small town library. The library is open from Tuesday to Saturday, from ten in
the morning until six in the evening, and on Thursdays until nine. A card is free for people who live in the town and
costs ten coins a year for everybody else. Up to eight books may be borrowed at a time, for three weeks, and each loan
can be renewed twice unless another reader has asked for the book. A book that comes back late costs one coin a week,
never more than five. The children's room is on the first floor, newspapers and the reading room are on the ground
floor, and old maps can be seen by appointment only. Be polite and short, never invent a rule, and say so when you do
not know an answer."""

_REPORT = """Summarise this report in three sentences.

In the spring the river rose twice. The first flood, in March, came after two weeks of warm rain on deep snow, and it
reached the lower road but not the houses. The second, at the end of April, followed a single night of heavy rain. The
ground was still full of water, so almost all of it ran off, and by morning the level at the old bridge was two metres
and ten above normal, thirty centimetres short of the mark of 1954. Eleven cellars were flooded, one barn was lost, and
the footbridge at the mill was carried away. Nobody was hurt. The warning went out nine hours before the peak, which
was long enough to move the animals from the lower meadows and to build a wall of sandbags at the school. The council
has decided to rebuild the footbridge one metre higher, to dredge the mouth of the mill stream, and to ask the province
for a second gauge upstream, since the present one stands below the mouth of the stream and sees its water late."""

_STORY = """Continue this story with the next paragraph.

The lighthouse keeper had not spoken to anyone for eleven days when the boat came. It was a small boat, painted green,
and it came from the wrong side, from the open sea, where there was no harbour for four hundred miles. A woman was
rowing it. She rowed as people row who have done it all their lives, without haste, looking over her shoulder only once
or twice, and she brought the boat into the lee of the rocks where even the fishermen from the village did not dare to
go. The keeper put down the brass polish, climbed down the hundred and nine steps and went out to the landing. He had
thought of many things to say, but when she threw him the rope he only caught it and made it fast."""

_CODE = """Explain what this function returns for the list [3, 1, 2] and why.

def walk(values):
    seen = []
    for value in values:
        position = len(seen)
        while position > 0 and seen[position - 1] > value:
            position -= 1
        seen.insert(position, value)
    return seen
"""

_LETTER = """Rewrite this letter so that it is friendlier, and keep every fact.

Sir, on 4 May I bought a kettle in your shop. On 6 May it stopped working. I brought it back on 8 May with the receipt
and was told that the person in charge was away. I came again on 11 May and was told the same. I do not intend to come
a third time. I expect either a new kettle or my money, which was 31 coins, by the end of this month."""


def _asked(question: str, system: str | None = None) -> Conversation:
    first = [] if system is None else [{"role": "system", "content": system}]
    return [*first, {"role": "user", "content": question}]


CONVERSATIONS: tuple[Conversation, ...] = (
    _asked("Name three things that float on water."),
    _asked(_REPORT),
    _asked("Until what time can I read the newspapers on a Thursday?", _LIBRARIAN),
    _asked("What is the difference between weather and climate?", _BRIEF),
    _asked("Write a short poem about a slow train."),
    _asked("I am from the next town. What does a card cost me, and how many books can I take?", _LIBRARIAN),
    _asked("Repeat this line five times: the rain falls softly on the roof."),
    _asked(_CODE),
    _asked("Why do leaves change their colour in autumn?"),
    _asked("My book is seven weeks late. How much do I have to pay?", _LIBRARIAN),
    _asked("List the days of the week, and then list them once more.", _BRIEF),
    _asked(_STORY),
    _asked("How do I boil an egg?"),
    _asked("Can my daughter find picture books here, and where?", _LIBRARIAN),
    _asked("Give me a name for a grey cat and say why it fits."),
    _asked("Translate into French: The library is closed on Mondays.", _BRIEF),
    _asked(_LETTER),
    _asked("Count from one to twenty in words."),
    _asked("I would like to see the map of 1788. What do I have to do?", _LIBRARIAN),
    _asked("A train leaves at nine and needs two and a half hours. When does it arrive?"),
    _asked("Explain to a child why the moon seems to follow a moving car."),
    _asked("Is the library open on Sunday? Answer first with yes or no.", _LIBRARIAN),
    _asked("Write the word stone ten times, separated by commas."),
    _asked("What should I think about before I plant an apple tree in a small garden?"),
)
