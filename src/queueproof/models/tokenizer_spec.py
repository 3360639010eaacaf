"""A tokenizer taken apart: what encodes plain text (without control tokens), the control tokens, and the prefix.

Read from Hugging Face's tokenizer.json and tokenizer_config.json; tokenizer_gguf.py builds the same from GGUF.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.models.control import TAG, ControlToken
from queueproof.models.fields import Fields, read_json
from queueproof.models.tokenizer_check import check_bpe


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """plain: a tokenizer.json object whose vocabulary lacks the control tokens.

    tokens: id to text of every token. added: ids of tokens added to the model's own vocabulary.
    prefix: ids that a plain prompt begins with.
    """

    source: str
    plain: dict[str, Any]
    tokens: dict[int, str]
    added: frozenset[int]
    control: tuple[ControlToken, ...]
    prefix: tuple[int, ...]

    def without_first_prefix(self) -> dict[str, Any] | None:
        """`plain` for pieces that do not begin the text, where that makes a difference; else None."""
        if not any(p.get("prepend_scheme") == "first" for p in _parts(self.plain.get("pre_tokenizer"))):
            return None
        inner = copy.deepcopy(self.plain)
        for part in _parts(inner["pre_tokenizer"]):
            if part.get("prepend_scheme") == "first":
                part["prepend_scheme"] = "never"
        return inner


def _parts(component: Any) -> list[dict[str, Any]]:
    if component is None:
        return []
    return list(component["pretokenizers"]) if component["type"] == "Sequence" else [component]


def take_apart(spec: dict[str, Any], source: str, prefix: tuple[int, ...]) -> TokenizerSpec:
    """Separates the control tokens from a tokenizer.json object, which is changed.

    A control token is an added token that is marked special, or that has the form of a tag (control.TAG).
    Raises UnsupportedModel for a model other than BPE: only its merges can be kept from making a control token, and
    ModelError for an object with broken parts.
    """
    model = spec["model"]
    if model.get("type") != "BPE":
        raise UnsupportedModel(f"{source}: a tokenizer of type {model.get('type')} is not supported; BPE is")
    check_bpe(spec, source)
    vocab: dict[str, int] = model["vocab"]
    added = spec.get("added_tokens") or []
    tokens = {token_id: token for token, token_id in vocab.items()} | {t["id"]: t["content"] for t in added}
    for token_id in prefix:
        if token_id not in tokens:
            raise ModelError(f"{source}: prompts begin with the id {token_id!r}, which is no token; get the file again")
    control, ordinary = [], []
    for t in added:
        if t["special"] or TAG.fullmatch(t["content"]):
            options = {name: bool(t.get(name)) for name in ("lstrip", "rstrip", "single_word")}
            control.append(ControlToken(t["id"], t["content"], bool(t["special"]), **options))
        else:
            ordinary.append(t)
    names = {t.text for t in control}
    # The library gives added tokens new ids unless the model's vocabulary has them.
    kept = names - {model.get("unk_token")}
    spec["model"] = model | {
        "vocab": {token: i for token, i in vocab.items() if token not in kept}
        | {t["content"]: t["id"] for t in ordinary},
        "merges": [m for m in model["merges"] if _merged(m) not in names],
    }
    spec |= {"added_tokens": ordinary, "post_processor": None, "truncation": None, "padding": None}
    return TokenizerSpec(source, spec, tokens, frozenset(t["id"] for t in added), tuple(control), prefix)


def _merged(merge: str | list[str]) -> str:
    return merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)


def read_hf(folder: Path, bos_id: int | None) -> TokenizerSpec:
    """The tokenizer of a Hugging Face folder. Raises ModelError and UnsupportedModel."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        if (folder / "tokenizer.model").is_file():
            raise UnsupportedModel(
                f"{folder} has only tokenizer.model; tokenizer.json is read "
                "(transformers' AutoTokenizer(...).save_pretrained writes it)"
            )
        raise ModelError(f"{path} does not exist; get the model again, with all its files")
    spec = dict(read_json(path).items())
    config = read_tokenizer_config(folder)
    try:
        prefix = _prefix(spec.get("post_processor"), str(path))
        if "add_bos_token" in config:  # says it outright, and wins in transformers too
            wanted = config.flag("add_bos_token")
            prefix = () if not wanted else prefix or (() if bos_id is None else (bos_id,))
        return take_apart(spec, str(path), prefix)
    except (KeyError, TypeError, AttributeError, StopIteration) as e:
        raise ModelError(f"{path} is not a tokenizer of the tokenizers library ({e!r}); get the file again") from e


def read_tokenizer_config(folder: Path) -> Fields:
    path = folder / "tokenizer_config.json"
    return read_json(path) if path.is_file() else Fields({}, str(path))


def special_texts(config: Fields) -> dict[str, str]:
    """bos_token, eos_token and the like of tokenizer_config.json; each is a text or an object with the text."""
    texts: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.raw(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            texts[name] = value
    return texts


def _prefix(processor: Any, source: str) -> tuple[int, ...]:
    """The ids that the post-processor puts before a text."""
    if processor is None:
        return ()
    parts = processor["processors"] if processor["type"] == "Sequence" else [processor]
    prefix: tuple[int, ...] = ()
    for part in parts:
        if part["type"] == "ByteLevel":  # moves offsets only
            continue
        if part["type"] != "TemplateProcessing":
            raise UnsupportedModel(f"{source}: a post-processor of type {part['type']} is not supported")
        at = next(i for i, item in enumerate(part["single"]) if "Sequence" in item)
        if len(part["single"]) > at + 1:
            raise UnsupportedModel(
                f"{source}: a tokenizer that ends every prompt with a special token is not supported"
            )
        for item in part["single"][:at]:
            prefix += tuple(part["special_tokens"][item["SpecialToken"]["id"]]["ids"])
    return prefix
