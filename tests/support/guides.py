"""Schemas, the pieces of a vocabulary that can write what they ask for, and whether answers are it."""

from __future__ import annotations

import json

from tests.support.simulation import Found

TEXTS = [*'{}[]",:.-+ \n0123456789abcdefgtrulsn', "\\", '{"', '":', '", "', '"}', "true", "false", "null", "ab", "name", '"name"', ': "', "}]"]  # fmt: skip
PIECES = {i + 1: text.encode() for i, text in enumerate(TEXTS)}
PERSON = json.dumps(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
LIST = json.dumps({"type": "array", "items": {"enum": [1, 22, "ab", None]}, "minItems": 1})
NUMBER = json.dumps({"type": "integer", "minimum": 0})
SHORT = json.dumps({"enum": ["a", "ab", 1]})
GUIDES = (PERSON, LIST, NUMBER, SHORT, "json")


def check_followed(found: Found) -> int:
    """How many answers of a simulation came to the end of their schema. Raises ValueError for one that is no JSON."""
    ended = 0
    for job, output in found.outputs:
        for answer in output.outputs:
            if job.params.guide is not None and answer.finish_reason == "stop" and answer.stop_reason is None:
                json.loads(answer.text)
                ended += 1
    return ended
