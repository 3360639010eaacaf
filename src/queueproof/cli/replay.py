"""`queueproof replay`: computes the answer of a receipt again and says whether it is the same to the bit."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queueproof.cli.env import settings
from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import JsonOption, ThreadsOption, threads_in_use
from queueproof.contract.errors import (
    CannotTell,
    ModelError,
    UnsupportedArithmetic,
    UnsupportedDevice,
    UsageError,
)
from queueproof.contract.receipt import Receipt, ReceiptDocument, is_receipt_id, read_document
from queueproof.contract.verdict import Difference, Outcome, Side, Verdict, What, enough_tokens

if TYPE_CHECKING:
    from queueproof.models.loader import LoadedModel
    from queueproof.models.tokenizer import Tokenizer

_EXITS = {Outcome.SAME: ExitCode.OK, Outcome.DIFFERENT: ExitCode.DIFFERENCE, Outcome.UNKNOWN: ExitCode.CANNOT_TELL}
_WHAT = {
    What.TOKEN: "another token",
    What.LOGPROB: "the same token with another log-probability",
    What.LSE: "the same log-probability from other logits",
    What.LENGTH: "one answer goes on, the other has ended",
    What.FINISH_REASON: "the same tokens, and another reason to end",
    What.DIGEST: "another digest; the receipt does not hold the answer, so the step is not known",
}


@guarded
def command(
    receipt: Annotated[
        str, typer.Argument(help="A file; - reads it from standard input; with --server also the id of a receipt.")
    ],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A known name, a path, or a Hugging Face id.  [default: the receipt's]"),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Address of a server that shall compute it; with --model it only hands out the receipt."),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(help="Key for the server; better in QUEUEPROOF_API_KEY, where `ps` shows nothing.")
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(help="The prompt, for a receipt without it: text, or JSON with prompt_token_ids or messages."),
    ] = None,
    verify_key: Annotated[
        Path | None, typer.Option(help="Public key in PEM form; the receipt's signature has to fit it.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda.  [default: the one that has the receipt's arithmetic]")
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Run the request of a receipt again, alone, and compare the answers bit for bit.

    Prints `same`, or the first step that differs. Exits with 0 for same, 1 for different, 3 if it cannot tell.
    """
    key = api_key or settings().api_key
    document = _read(receipt, server, key)
    if verify_key is not None:
        from queueproof.server.receipts.signing import Verifier

        Verifier.load(verify_key).verify(document)
    prompt = None if prompt_file is None else _read_prompt(prompt_file)
    try:
        if document.receipt.prompt_token_ids is None and prompt is None:
            raise CannotTell("the receipt does not hold the prompt; give it with --prompt-file")
        if server is not None and model is None:
            from queueproof.cli.remote import replay_there

            verdict = replay_there(server, key, document, None if prompt is None else prompt.only_ids())
        else:
            verdict = _replay_here(document.receipt, model, prompt, device, threads)
    except CannotTell as error:
        verdict = Verdict.unknown(str(error))
    if as_json:
        print_json({"id": document.receipt.id} | verdict.to_plain())
    else:
        _show(document.receipt, verdict)
    return _EXITS[verdict.outcome]


def _read(name: str, server: str | None, key: str | None) -> ReceiptDocument:
    """Raises UsageError, ContractError, ServerError."""
    if is_receipt_id(name) and not Path(name).exists():
        if server is None:
            raise UsageError(f"{name} is the id of a receipt; say with --server who keeps it, or give a file")
        from queueproof.cli.remote import fetch_receipt

        return fetch_receipt(server, key, name)
    try:
        content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"the receipt {name} cannot be read: {error.strerror}") from None
    return read_document(content)


def _replay_here(
    receipt: Receipt, model: str | None, prompt: _Prompt | None, device: str | None, threads: int | None
) -> Verdict:
    from queueproof.engine.llm import LLM
    from queueproof.engine.replay import replay

    loaded = _load(receipt, model, device)
    ids = None if prompt is None else prompt.encoded(loaded.tokenizer)
    # No more of the context than the answer needs, so that little memory will do.
    length = min(loaded.max_len, receipt.prompt_tokens + enough_tokens(receipt))
    with LLM(loaded, threads=threads_in_use(threads), max_num_seqs=1, max_model_len=length) as llm:
        return replay(llm, receipt, ids)


def _load(receipt: Receipt, model: str | None, device: str | None) -> LoadedModel:
    """Raises CannotTell where this machine lacks the arithmetic, or the model that the receipt names."""
    from queueproof.cli import loading
    from queueproof.kernels.registry import SUPPORTED

    devices = [d for arithmetic, d in SUPPORTED if arithmetic == receipt.arithmetic]
    if not devices:
        have = ", ".join(dict.fromkeys(arithmetic for arithmetic, _ in SUPPORTED))
        raise CannotTell(f"the receipt is of the arithmetic {receipt.arithmetic}; this version has {have}")
    name = model or receipt.model.name
    try:
        with loading.shown(err()) as report:
            return loading.load(
                name, receipt.arithmetic, report, dtype=receipt.model.dtype, device=device or devices[0]
            )
    except (UnsupportedArithmetic, UnsupportedDevice) as error:
        raise CannotTell(str(error)) from error
    except (UsageError, ModelError) as error:
        if model is not None:
            raise
        raise CannotTell(f"the receipt's model {name!r} is not here: {error}; name it with --model") from error


@dataclass(frozen=True, slots=True)
class _Prompt:
    """One of them: token ids, text, or the messages of a conversation."""

    path: Path
    ids: list[int] | None = None
    text: str | None = None
    messages: list[Any] | None = None

    def encoded(self, tokenizer: Tokenizer) -> list[int]:
        """Raises UsageError."""
        if self.ids is not None:
            return self.ids
        if self.messages is not None:
            return tokenizer.encode_chat(self.messages)
        return tokenizer.encode(self.text or "")

    def only_ids(self) -> list[int]:
        """For a server. Raises UsageError."""
        if self.ids is None:
            raise UsageError(f"the server takes the prompt as token ids: {self.path} must hold a JSON list of them")
        return self.ids


def _read_prompt(path: Path) -> _Prompt:
    """JSON that is no prompt in one of the known forms is a text. Raises UsageError for a file that cannot be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"the prompt {path} cannot be read: {error}") from None
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return _Prompt(path, text=text)
    match content:
        case list(ids) | {"prompt_token_ids": list(ids)} if all(type(token) is int for token in ids):
            return _Prompt(path, ids=ids)
        case {"prompt": str(prompt)}:
            return _Prompt(path, text=prompt)
        case {"messages": list(messages)}:
            return _Prompt(path, messages=messages)
    return _Prompt(path, text=text)


def _show(receipt: Receipt, verdict: Verdict) -> None:
    lines = []
    match verdict.outcome:
        case Outcome.SAME:
            lines.append("same")
        case Outcome.DIFFERENT:
            lines.append("different")
        case Outcome.UNKNOWN:
            lines.append(f"cannot tell: {verdict.reason}")
    if verdict.outcome is not Outcome.UNKNOWN:
        lines[0] += (
            f": {receipt.answer.tokens} tokens of {receipt.model.name}, {receipt.class_.value}, {receipt.arithmetic}"
        )
    if verdict.difference is not None:
        lines += _lines(verdict.difference)
    for line in lines:
        out().print(line, markup=False, soft_wrap=True)


def _lines(difference: Difference) -> list[str]:
    where = "" if difference.step is None else f"step {difference.step}: "
    sides = (("receipt", difference.receipt), ("replay", difference.replay))
    return [f"{where}{_WHAT[difference.what]}", *(f"  {name:8}{_side(side)}" for name, side in sides)]


def _side(side: Side) -> str:
    if side.token_id is None:
        return f"{side.tokens} tokens, ended by {side.finish_reason}"
    text = "" if side.token is None else f" {side.token!r}"
    return (
        f"token {side.token_id}{text}, logprob {_number(side.logprob, side.logprob_bits)}, "
        f"lse {_number(side.lse, side.lse_bits)}"
    )


def _number(value: float | None, bits: str | None) -> str:
    return f"{'not finite' if value is None else f'{value:.9g}'} ({bits})"
