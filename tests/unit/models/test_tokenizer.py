"""Ids of text, text of ids, in pieces too, for byte-level and SentencePiece vocabularies."""

from __future__ import annotations

import json
import threading
import time
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from queueproof.contract.errors import InvalidParameter, UnsupportedModel
from queueproof.models import tokenizer as tokenizer_module
from queueproof.models.fields import Fields
from queueproof.models.tokenizer import Tokenizer
from queueproof.models.tokenizer_gguf import PRE_TOKENIZERS, read_gguf_tokenizer
from queueproof.models.tokenizer_spec import read_hf
from queueproof.models.vocabulary import SPACE
from tests.support.checkpoints import CONTROL, MERGES, tokens, write_tokenizer

TEXTS = [
    "",
    "hello world",
    "  two  spaces\tand\ttabs\r\n\r\nlines \n ",
    "1234567890 ¼ ² ١٢٣",
    "def f(x):\n    return x[1] // 2  # café",
    "naïve Ελλάδα 漢字かな 한국어 🙂👩‍👩‍👧 e\u0301",
    "\x00\x01\x7f\u200b\ufdd0\uffff\U0010ffff",
    "<|im_end|> <|im_start|><|endoftext|>",
]


def gguf_metadata(**changes: Any) -> Fields:
    values = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens(),
        "token_type": [3 if t in CONTROL else 1 for t in tokens()],
        "merges": list(MERGES),
        "bos_token_id": 0,
    } | changes
    return Fields({f"tokenizer.ggml.{k}": v for k, v in values.items()}, "test.gguf")


def byte_level(**changes: Any) -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(gguf_metadata(**changes)), 0, (2,), None)


def sentencepiece(**changes: Any) -> Tokenizer:
    """Pieces of a Llama-2-like vocabulary, with scores, bytes, and a piece that is the beginning of a control token."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    types = [2, 3, 3] + [6] * 256
    words = [SPACE, *"helowrd<s>/", "he", "ll", "llo", "hello", f"{SPACE}hello", f"{SPACE}w", "<s", "</s"]
    values = {
        "model": "llama",
        "tokens": pieces + words,
        "token_type": types + [1] * len(words),
        "scores": [0.0] * len(pieces) + [-float(i) for i in range(len(words))],
        "bos_token_id": 1,
    } | changes
    fields = Fields({f"tokenizer.ggml.{k}": v for k, v in values.items()}, "test.gguf")
    return Tokenizer(read_gguf_tokenizer(fields), 1, (2,), None)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_text_comes_back(pre: str, text: str) -> None:
    tokenizer = byte_level(pre=pre)
    expected = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    assert tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False) == (
        expected if pre not in ("llama-bpe", "llama3", "llama-v3") else CONTROL[0] + expected
    )


@given(st.text(st.characters(codec="utf-8", exclude_characters=SPACE)))  # SentencePiece reads its mark as a space
def test_any_text_comes_back(text: str) -> None:
    for tokenizer in (BYTES, PIECES):
        assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


@given(st.lists(st.integers(0, 290)))
def test_pieces_are_the_whole_and_hold_no_broken_character(ids: list[int]) -> None:
    for tokenizer in (BYTES, PIECES):
        stream = tokenizer.stream()
        parts = [stream.push(i) for i in ids] + [stream.finish()]
        assert "".join(parts) == tokenizer.decode(ids)


def test_a_character_of_several_tokens_waits_for_its_last() -> None:
    stream = BYTES.stream()
    ids = BYTES.encode("a🙂b")
    assert [stream.push(i) for i in ids] == ["a", "", "", "", "🙂", "b"]
    assert stream.finish() == ""
    stream = BYTES.stream()
    assert [stream.push(i) for i in ids[:3]] == ["a", "", ""]
    assert stream.finish() == "\ufffd"


def test_decoding_agrees_with_the_tokenizers_library(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(read_hf(tmp_path, None), 0, (2,), None)
    for text in TEXTS[:-1]:
        ids = library.encode(text).ids
        assert ours.encode(text) == ids
        assert ours.decode(ids) == library.decode(ids)
    ids = [0, *library.encode("hello").ids, 2]
    assert ours.decode(ids) == library.decode(ids) == "hello"
    assert ours.decode(ids, False) == library.decode(ids, skip_special_tokens=False) == "<|endoftext|>hello<|im_end|>"


def test_both_sources_give_the_same_ids(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    ours = Tokenizer(read_hf(tmp_path, None), 0, (2,), None)
    for text in TEXTS:
        assert ours.encode(text) == BYTES.encode(text)


def test_digits_stand_alone_where_the_model_wants_it() -> None:
    twelve = tokens().index("12")
    assert twelve not in byte_level(pre="smollm").encode("12")
    assert byte_level(pre="gpt-2").encode("12") == [twelve]
    assert twelve not in byte_level(pre="qwen2").encode("12")
    assert byte_level(pre="llama-bpe").encode("12") == [0, twelve]


@pytest.mark.parametrize("text", CONTROL)
def test_control_tokens_in_text_stay_text(text: str) -> None:
    ids = BYTES.encode(f"a{text}b")
    assert not set(ids) & {0, 1, 2} and BYTES.decode(ids) == f"a{text}b"


@pytest.mark.parametrize("text", ["<s>", "</s>", "<unk>", "x<s>y", "<s></s>"])
def test_pieces_do_not_merge_into_control_tokens(text: str) -> None:
    ids = PIECES.encode(text, add_bos=False)
    assert not set(ids) & {0, 1, 2}
    assert PIECES.decode(ids) == text


def test_a_merge_that_makes_a_control_token_is_dropped() -> None:
    tokenizer = byte_level(tokens=[*tokens(), "<|", "<|x"], token_type=[*byte_types(), 1, 3], merges=[*MERGES, "<| x"])
    assert tokenizer.decode(tokenizer.encode("<|x")) == "<|x"
    assert len(tokens()) + 1 not in tokenizer.encode("<|x")


def byte_types() -> list[int]:
    return [3 if t in CONTROL else 1 for t in tokens()]


def test_sentencepiece_merges_the_best_scores_first() -> None:
    texts = [PIECES.vocabulary.text(i) for i in PIECES.encode("hello w")]
    assert texts == ["<s>", f"{SPACE}hello", f"{SPACE}w"]
    assert PIECES.decode(PIECES.encode("hello é")) == "hello é"
    assert sentencepiece(add_space_prefix=False).decode([*PIECES.encode("hello")]) == " hello"


def test_the_beginning_of_text_token() -> None:
    assert BYTES.encode("a", add_bos=True) == [0, *BYTES.encode("a")]
    assert PIECES.encode("h")[0] == 1 and PIECES.encode("h", add_bos=False)[0] != 1
    assert byte_level(add_bos_token=True).encode("")[:1] == [0]
    spec = read_gguf_tokenizer(gguf_metadata())
    with pytest.raises(InvalidParameter, match="no beginning-of-text token"):
        Tokenizer(spec, None, (), None).encode("a", add_bos=True)


@pytest.mark.parametrize("config, prefix", [({}, []), ({"add_bos_token": True}, [0]), ({"add_bos_token": False}, [])])
def test_add_bos_token_of_a_folder(config: dict[str, Any], prefix: list[int], tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert Tokenizer(read_hf(tmp_path, 0), 0, (2,), None).encode("") == prefix


def test_a_post_processor_that_begins_or_ends_a_prompt(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    library = tokenizers.Tokenizer.from_file(str(path))
    template = tokenizers.processors.TemplateProcessing
    library.post_processor = template(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)])
    library.save(str(path))
    assert Tokenizer(read_hf(tmp_path, 0), 0, (2,), None).encode("a") == library.encode("a").ids
    library.post_processor = template(single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)])
    library.save(str(path))
    with pytest.raises(UnsupportedModel, match="ends every prompt"):
        read_hf(tmp_path, 0)


@pytest.mark.parametrize("tokenizer", [byte_level(), byte_level(pre="qwen2"), sentencepiece()])
def test_long_texts_have_the_ids_of_the_same_rules(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    short = [tokenizer.encode(text) for text in TEXTS]
    monkeypatch.setattr(tokenizer_module, "_LONG_TEXT", 0)
    assert [tokenizer.encode(text) for text in TEXTS] == short


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    """One long prompt must not stop the streams of a server."""
    tokenizer = byte_level()
    thread = threading.Thread(target=tokenizer.encode, args=("a" * 600_000,))
    start = last = time.perf_counter()
    longest = 0.0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < (last - start) / 2


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="surrogate"):
        BYTES.encode("a\ud800")


def test_ids_outside_the_vocabulary_have_no_text() -> None:
    assert BYTES.decode([100000]) == "" and BYTES.vocab_size == len(tokens())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"pre": "unheard-of"}, "pre='unheard-of' is not supported; supported are default, gpt-2, smollm"),
        ({"pre": None}, "tokenizer.ggml.pre is missing"),
        ({"model": "bert"}, "'bert' is not supported; gpt2 and llama are"),
    ],
)
def test_unknown_tokenizers_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        read_gguf_tokenizer(gguf_metadata(**changes))


def test_other_models_of_the_library_are_refused(tmp_path: Path) -> None:
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, "a"))
    library.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="type WordLevel is not supported; BPE is"):
        read_hf(tmp_path, None)


def test_the_digest_names_the_tokenizer() -> None:
    assert byte_level().digest == BYTES.digest != byte_level(pre="gpt-2").digest
    assert BYTES.digest != byte_level(add_bos_token=True).digest


BYTES, PIECES = byte_level(), sentencepiece()
