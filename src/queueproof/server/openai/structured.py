"""`response_format`: how the form of an answer is asked for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from queueproof.server.errors import bad_request
from queueproof.server.jsonio import dumps
from queueproof.server.openai.fields import Strict


class TextFormat(Strict):
    type: Literal["text"]


class JsonObjectFormat(Strict):
    type: Literal["json_object"]


class JsonSchema(Strict):
    """strict: whatever it says, the answer follows the schema."""

    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: str | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class JsonSchemaFormat(Strict):
    type: Literal["json_schema"]
    json_schema: JsonSchema


ResponseFormat = Annotated[TextFormat | JsonObjectFormat | JsonSchemaFormat, Field(discriminator="type")]


def guide_of(wanted: ResponseFormat | None, max_schema: int) -> str | None:
    """`guide` of the sampling parameters. Raises ApiError 400 for a schema of more than `max_schema` characters."""
    if wanted is None or isinstance(wanted, TextFormat):
        return None
    if isinstance(wanted, JsonObjectFormat) or wanted.json_schema.schema_ is None:
        return "json"
    text = dumps(wanted.json_schema.schema_)
    if len(text) > max_schema:
        raise bad_request(
            f"the JSON schema has {len(text)} characters, this server takes {max_schema}; make it smaller",
            "response_format",
        )
    return text
