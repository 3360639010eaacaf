"""The tokenizer in GGUF metadata, rebuilt as a tokenizer.json object.

`gpt2`: byte-level BPE, whose pre-tokenizer is named by `tokenizer.ggml.pre`; the splits are those of the Hugging Face
tokenizers that the names stand for. `llama`: SentencePiece BPE, whose merges follow from the scores of the pieces.
"""

from __future__ import annotations

from typing import Any, Final

from queueproof.contract.errors import ModelError, UnsupportedModel
from queueproof.models.fields import Fields
from queueproof.models.tokenizer_spec import TokenizerSpec, take_apart
from queueproof.models.vocabulary import SPACE

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # tokenizer.ggml.token_type

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


_DIGITS = [{"type": "Digits", "individual_digits": True}, _byte_level(True)]
_LLAMA3 = [_split(LLAMA3), _byte_level(False)]
# Where a file names no model's pre-tokenizer, this is what llama.cpp does.
_DEFAULT = [_split(p) for p in (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")] + [_byte_level(False)]
PRE_TOKENIZERS: Final[dict[str, list[dict[str, Any]]]] = {
    "default": _DEFAULT,
    "gpt-2": [_byte_level(True)],
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": [_split(QWEN2), _byte_level(False)],
}
BEGINS_WITH_BOS: Final = frozenset({"llama-bpe", "llama3", "llama-v3"})  # where the file does not say
NFC: Final = frozenset({"qwen2"})


def read_gguf_tokenizer(metadata: Fields) -> TokenizerSpec:
    """Raises UnsupportedModel for a tokenizer or pre-tokenizer that is not rebuilt here, ModelError for broken lists."""
    kind = metadata.text("tokenizer.ggml.model")
    if kind == "gpt2":
        spec, bos_by_default = _byte_level_bpe(metadata)
    elif kind == "llama":
        spec, bos_by_default = _sentencepiece(metadata), True
    else:
        raise UnsupportedModel(f"{metadata.source}: tokenizer.ggml.model={kind!r} is not supported; gpt2 and llama are")
    prefix: tuple[int, ...] = ()
    if metadata.flag("tokenizer.ggml.add_bos_token", bos_by_default):
        prefix = (metadata.integer("tokenizer.ggml.bos_token_id"),)
    return take_apart(spec, metadata.source, prefix)


def _byte_level_bpe(metadata: Fields) -> tuple[dict[str, Any], bool]:
    if "tokenizer.ggml.pre" not in metadata:
        raise UnsupportedModel(
            f"{metadata.source}: tokenizer.ggml.pre is missing, so it is unknown how text is cut into words; "
            "use a newer conversion of this model"
        )
    pre = metadata.text("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"{metadata.source}: tokenizer.ggml.pre={pre!r} is not supported; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    tokens, types = _tokens(metadata)
    merges = metadata.texts("tokenizer.ggml.merges")
    model = {"type": "BPE", "vocab": _vocab(tokens), "merges": merges, "ignore_merges": pre in BEGINS_WITH_BOS}
    spec = {
        "version": "1.0",
        "added_tokens": _added(tokens, types),
        "normalizer": {"type": "NFC"} if pre in NFC else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": PRE_TOKENIZERS[pre]},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": model,
    }
    return spec, pre in BEGINS_WITH_BOS


def _sentencepiece(metadata: Fields) -> dict[str, Any]:
    tokens, types = _tokens(metadata)
    scores = metadata.raw("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens):
        raise ModelError(f"{metadata.source}: tokenizer.ggml.scores does not fit the tokens; get the file again")
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    to_mark: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    space_first = metadata.flag("tokenizer.ggml.add_space_prefix", True)
    normalizers = [{"type": "Prepend", "prepend": SPACE}, to_mark] if space_first else [to_mark]
    from_mark = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    decoders = [from_mark, {"type": "ByteFallback"}, {"type": "Fuse"}]
    if space_first:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    ordinary = {token: score for token, score, kind in zip(tokens, scores, types, strict=True) if kind == 1}
    model: dict[str, Any] = {"type": "BPE", "vocab": _vocab(tokens), "merges": _merges(tokens, ordinary)}
    model |= {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    return {
        "version": "1.0",
        "added_tokens": _added(tokens, types),
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }


def _merges(tokens: list[str], scores: dict[str, float]) -> list[list[str]]:
    """Every way to make a piece out of two others, best score of the result first, as transformers converts them."""
    ids = {token: i for i, token in enumerate(tokens)}
    found: list[tuple[float, int, int, str, str]] = []
    for piece, score in scores.items():
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = sorted((p for p in pairs if p[0] in scores and p[1] in scores), key=lambda p: (ids[p[0]], ids[p[1]]))
        found += [(score, len(left), len(right), left, right) for left, right in pairs]
    found.sort(key=lambda m: m[:3], reverse=True)
    return [[left, right] for *_, left, right in found]


def _tokens(metadata: Fields) -> tuple[list[str], list[int]]:
    tokens = metadata.texts("tokenizer.ggml.tokens")
    types = metadata.raw("tokenizer.ggml.token_type")
    if not isinstance(types, list) or len(types) != len(tokens):
        raise ModelError(f"{metadata.source}: tokenizer.ggml.token_type does not fit the tokens; get the file again")
    return tokens, types


def _vocab(tokens: list[str]) -> dict[str, int]:
    return {token: i for i, token in enumerate(tokens)}


def _added(tokens: list[str], types: list[int]) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, "special": kind != USER_DEFINED} | flags
        for i, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED)
    ]
