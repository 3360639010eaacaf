"""Whether a tokenizer.json object has the parts that are taken from it, before anything is."""

from __future__ import annotations

from typing import Any

from queueproof.contract.errors import ModelError


def check_bpe(spec: dict[str, Any], source: str) -> None:
    """Raises ModelError naming the first part that is missing or of another kind. Pre: its model is a BPE object."""
    model = spec["model"]
    vocab, merges, unknown = model.get("vocab"), model.get("merges"), model.get("unk_token")
    if not isinstance(vocab, dict) or not all(_is_id(token_id) for token_id in vocab.values()):
        raise _broken(source, "model.vocab", vocab, "an object of texts and ids")
    if not isinstance(merges, list) or not all(_is_merge(merge) for merge in merges):
        raise _broken(source, "model.merges", merges, "a list of pairs")
    if unknown is not None and not isinstance(unknown, str):
        raise _broken(source, "model.unk_token", unknown, "a text")
    added = spec.get("added_tokens")
    if added is not None and not (isinstance(added, list) and all(_is_added(token) for token in added)):
        raise _broken(source, "added_tokens", added, "a list of objects with id, content and special")
    _check_component(spec.get("pre_tokenizer"), "pre_tokenizer", "pretokenizers", source)
    _check_component(spec.get("decoder"), "decoder", "decoders", source)


def _check_component(component: Any, name: str, parts: str, source: str) -> None:
    """Nothing, an object with a type, or a Sequence of such objects."""
    several = [component]
    if isinstance(component, dict) and component.get("type") == "Sequence":
        several = component.get(parts)  # type: ignore[assignment]
    elif component is None:
        return
    if not isinstance(several, list) or not all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in several
    ):
        raise _broken(source, name, component, "an object with a type, or a Sequence of them")


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def _is_merge(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)
    )


def _is_added(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _is_id(value.get("id"))
        and isinstance(value.get("content"), str)
        and value["content"] != ""
        and isinstance(value.get("special"), bool)
    )


def _broken(source: str, name: str, value: Any, wanted: str) -> ModelError:
    text = repr(value)
    shown = text if len(text) <= 80 else text[:77] + "..."
    return ModelError(f"{source}: {name} is {shown}, expected {wanted}; get the file again")
