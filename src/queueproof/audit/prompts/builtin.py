"""The prompts that are asked where none are given, written for this purpose.

Of every kind some, and in such an order that any first few of them are a mix. Near-tie seekers are open: their next words
are nearly equally likely, so that a rounding which moves may move a token.
"""

from __future__ import annotations

from queueproof.audit.ask import Prompt
from queueproof.audit.prompts.prose import HARBOUR, WORKSHOP

CHAT, CODE, LONG, LANGUAGE, NEAR_TIE = "chat", "code", "long", "language", "near-tie"


def builtin() -> tuple[Prompt, ...]:
    """All of them, keys unique."""
    return _PROMPTS


def _user(key: str, kind: str, text: str) -> Prompt:
    return Prompt(key, kind, messages=(("user", text),))


_PROMPTS = (
    _user("dew", CHAT, "Why is there dew on the grass in the morning, even when it has not rained?"),
    _user(
        "names for a boat", NEAR_TIE, "Suggest twelve names for a small sailing boat, one on each line, nothing else."
    ),
    _user("median", CODE, "Write a Python function that returns the median of a list of numbers. Only the code."),
    _user("brot", LANGUAGE, "Erkläre einem Kind in drei Sätzen, warum Brot beim Backen aufgeht."),
    _user("harbour", LONG, f"Read the text and say in two sentences who paid for the light, and how.\n\n{HARBOUR}"),
    _user(
        "story door",
        NEAR_TIE,
        "Begin a story with a door that was not there yesterday. Write the first five sentences.",
    ),
    Prompt(
        "library",
        CHAT,
        messages=(
            (
                "system",
                "You are the clerk of a small town library. Be brief and friendly. Books are lent for three weeks.",
            ),
            (
                "user",
                "I have had a book for a month because I was ill. What should I do, and will it cost me anything?",
            ),
        ),
    ),
    _user("synonyms calm", NEAR_TIE, "List fifteen words that mean something like 'calm', in no particular order."),
    _user("雨の日", LANGUAGE, "雨の日に家の中で楽しめることを三つ、短く教えてください。"),
    _user(
        "sql orders",
        CODE,
        "A table orders(id, customer, day, amount) is given. Write an SQL query for the three customers with the largest "
        "total amount in each month.",
    ),
    _user("invent animal", NEAR_TIE, "Invent an animal that lives in libraries and describe its habits."),
    _user(
        "stairs",
        CHAT,
        "I get out of breath on the stairs. Give me a plan for four weeks, with one short exercise a day.",
    ),
    _user("plaza", LANGUAGE, "Describe la plaza de un pueblo pequeño a las seis de la mañana, en un solo párrafo."),
    _user("random words", NEAR_TIE, "Write twenty unrelated English nouns, separated by commas."),
    _user(
        "regex dates",
        CODE,
        "Explain, part by part, what this regular expression matches, and name one thing it gets wrong:\n"
        r"^(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$",
    ),
    _user("workshop", LONG, f"What was the cause of the fault, and how was it found? Answer in a list.\n\n{WORKSHOP}"),
    _user(
        "sea poem", NEAR_TIE, "Write a poem of eight lines about the sea, without rhymes and without the word 'blue'."
    ),
    _user("茶", LANGUAGE, "用简单的话说明绿茶和红茶有什么不同，并各举一个例子。"),
    _user(
        "letter landlord",
        CHAT,
        "Write a short, polite letter to a landlord about a kitchen window that does not close.",
    ),
    _user("gift ideas", NEAR_TIE, "Give me ten ideas for a present for somebody who has everything. One line each."),
    Prompt(
        "tides",
        CHAT,
        messages=(
            ("user", "What causes the tides?"),
            ("assistant", "Mostly the Moon: its pull is stronger on the near side of the Earth than on the far side."),
            ("user", "Then why are there two high tides a day and not one?"),
        ),
    ),
    _user(
        "marché", LANGUAGE, "Raconte en cinq phrases une matinée au marché, du point de vue d'un vendeur de fromage."
    ),
    _user(
        "off by one",
        CODE,
        "This is meant to return the last n lines of a text. Find the mistake and correct it.\n\n"
        "def tail(text, n):\n    lines = text.split('\\n')\n    return '\\n'.join(lines[len(lines) - n - 1:])\n",
    ),
    _user("what next", NEAR_TIE, "The old radio switched itself on and said:"),
    _user("الصحراء", LANGUAGE, "اشرح بإيجاز لماذا تكون ليالي الصحراء باردة مع أن نهارها حار."),
    _user("pros and cons", CHAT, "Is it better to learn the piano as a child or as an adult? Weigh both and decide."),
    _user(
        "both texts",
        LONG,
        "Two texts follow. Say what they have in common, and quote one sentence of each that shows it.\n\n"
        f"First text:\n\n{WORKSHOP}\n\nSecond text:\n\n{HARBOUR}",
    ),
    _user("titles", NEAR_TIE, "Invent eight titles of books that do not exist, with their authors."),
    _user("осень", LANGUAGE, "Опиши осенний лес четырьмя предложениями, не называя ни одного цвета."),
    _user(
        "shell rename", CODE, "Write a shell command that renames all .jpeg files below a folder to .jpg. Explain it."
    ),
    _user("वर्षा", LANGUAGE, "वर्षा कैसे होती है? दस साल के बच्चे को चार वाक्यों में समझाइए।"),
    _user("argue both", NEAR_TIE, "Tabs or spaces? Argue for one side as if you meant it, then for the other."),
)
