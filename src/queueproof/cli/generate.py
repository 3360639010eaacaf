"""`queueproof generate`: answers one prompt as a stream, or a file of requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import (
    DeviceArithmeticOption,
    DeviceOption,
    JsonOption,
    ModelOption,
    ThreadsOption,
    model_name,
    threads_in_use,
)
from queueproof.contract.errors import InvalidParameter, UsageError

if TYPE_CHECKING:
    from queueproof.engine.llm import LLM
    from queueproof.engine.outputs import RequestOutput
    from queueproof.engine.sampling_params import SamplingParams

PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")


@guarded
def command(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="JSONL: a request a line, with prompt, messages or prompt_token_ids."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="The prompt is a user's message: use the chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="System message, with --chat.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer.  [default: 128]")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.  [default: 0]")] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Keep the most likely tokens up to this probability.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Keep tokens of this share of the best one's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of the sampler; drawn and reported if not given.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the answer before this text; may be repeated.")] = None,
    model: ModelOption = None,
    arithmetic: DeviceArithmeticOption = None,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Answer one prompt, or every line of a JSONL file.

    Options given here are the defaults for the lines of a file; a line's own sampling parameters win.
    """
    from queueproof.cli.loading import load, shown
    from queueproof.engine.llm import LLM

    given = {
        "max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
        "seed": seed, "stop": stop,
    }  # fmt: skip
    defaults = {"max_tokens": 128, "temperature": 0.0} | {k: v for k, v in given.items() if v is not None}
    requests = _requests(prompt, file, chat, system)
    params = [_params(defaults | options, where) for _, options, where in requests]  # before anything is loaded
    with shown(err()) as report:
        loaded = load(model_name(model), arithmetic, report, device=device)
    with LLM(loaded, threads=threads_in_use(threads)) as llm:
        prompts = [_encoded(llm, p) for p, _, _ in requests]
        if file is None:
            output = _stream(llm, prompts[0], params[0], quiet=as_json)
            _check([output])
            if as_json:
                print_json(record(output))
            return ExitCode.OK
        outputs = llm.generate(prompts, params, use_tqdm=False)
    for (_, _, where), output in zip(requests, outputs, strict=True):
        if as_json:
            print_json({"line": where} | record(output))
        else:
            for completion in output.outputs:
                out().print(f"--- line {where}", markup=False)
                out().print(completion.text, markup=False, soft_wrap=True)
    _check(outputs)
    return ExitCode.OK


def _requests(
    prompt: str | None, file: Path | None, chat: bool, system: str | None
) -> list[tuple[dict[str, Any], dict[str, Any], int | None]]:
    """(prompt or messages, sampling options, line of the file if there is one) of each request. Raises UsageError."""
    if (prompt is None) == (file is None):
        raise UsageError("give either a prompt or --file")
    if system is not None and not chat:
        raise UsageError("--system needs --chat: a plain prompt has no system message")
    if file is not None:
        return _read_file(file, chat, system)
    text = _standard_input() if prompt == "-" else prompt or ""
    if not text:
        raise InvalidParameter("prompt", text, "it must not be empty")
    return [(_as_chat(text, system) if chat else {"prompt": text}, {}, None)]


def _standard_input() -> str:
    if sys.stdin is None:
        raise UsageError("standard input is closed; give the prompt as an argument")
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is no text: {error}") from None


def _as_chat(text: str, system: str | None) -> dict[str, Any]:
    first = [] if system is None else [{"role": "system", "content": system}]
    return {"messages": [*first, {"role": "user", "content": text}]}


def _read_file(file: Path, chat: bool, system: str | None) -> list[tuple[dict[str, Any], dict[str, Any], int | None]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} cannot be read: {error}") from None
    requests: list[tuple[dict[str, Any], dict[str, Any], int | None]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{file}, line {number}"
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{where} is not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise UsageError(f"{where} must be an object with one of {', '.join(PROMPT_KEYS)}")
        found = [key for key in PROMPT_KEYS if key in fields]
        if len(found) != 1:
            raise UsageError(f"{where} must have exactly one of {', '.join(PROMPT_KEYS)}")
        source = {key: fields.pop(key) for key in (*found, "cache_salt") if key in fields}
        if found == ["messages"] and "cache_salt" in source:
            raise UsageError(f"{where}: cache_salt goes with prompt or prompt_token_ids")
        if chat and found == ["prompt"] and isinstance(source["prompt"], str) and source["prompt"]:
            source = _as_chat(source["prompt"], system)
        requests.append((source, fields, number))
    if not requests:
        raise UsageError(f"{file} holds no request")
    return requests


def _params(options: Mapping[str, Any], line: int | None) -> SamplingParams:
    from queueproof.engine.sampling_params import SamplingParams

    try:
        return SamplingParams(**options)
    except InvalidParameter as error:
        place = "" if line is None else f" (line {line})"
        raise InvalidParameter(error.name, error.value, f"{error.allowed}{place}") from None


def _encoded(llm: LLM, source: dict[str, Any]) -> Any:
    if "messages" in source:
        return {"prompt_token_ids": llm.engine.model.tokenizer.encode_chat(source["messages"])}
    return source


def _stream(llm: LLM, prompt: Any, params: SamplingParams, quiet: bool) -> RequestOutput:
    """Runs one request and writes its first answer as it grows."""
    engine = llm.engine
    request = engine.add_request(prompt, params)
    output = engine.output(request)
    while engine.has_work:
        engine.step()
        output = engine.output(request)
        if not quiet:
            sys.stdout.write(output.outputs[0].delta_text)
            sys.stdout.flush()
    if not quiet:
        sys.stdout.write("\n")
    return output


def _check(outputs: list[RequestOutput]) -> None:
    """Raises the error of the first answer that ended with one."""
    for output in outputs:
        for completion in output.outputs:
            if completion.error is not None:
                raise completion.error


def record(output: RequestOutput) -> dict[str, Any]:
    """An answer as JSON. Bits are f32 bit patterns in hexadecimal: JSON numbers cannot hold all of them."""
    return {
        "prompt_token_ids": list(output.prompt_token_ids),
        "arithmetic": output.arithmetic,
        "class": output.determinism_class,
        "outputs": [
            {
                "text": completion.text,
                "token_ids": list(completion.token_ids),
                "logprob_bits": [f"{bits:08x}" for bits in completion.logprob_bits.tolist()],
                "lse_bits": [f"{bits:08x}" for bits in completion.lse_bits.tolist()],
                "seed": completion.seed,
                "finish_reason": completion.finish_reason,
            }
            for completion in output.outputs
        ],
    }
