"""Logs of Inspect (inspect_ai): .json, and .eval, a zip of JSON whose members are compressed with Zstandard or Deflate.

Long texts of a sample lie in its `attachments`, and `attachment://HASH` stands in their places.
"""

from __future__ import annotations

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

import zstandard

from queueproof.audit.ask import Answer
from queueproof.audit.runs.model import About, Sample, Score
from queueproof.audit.runs.readers import values
from queueproof.audit.runs.readers.files import Progress, Record
from queueproof.contract.errors import ContractError, UsageError

_ZSTANDARD = 93  # of APPNOTE.TXT 4.4.5; Python's zipfile knows it from 3.14 on
_LOCAL_HEADER = struct.Struct("<4s22xHH")  # signature, lengths of the name and of the extra field
_ATTACHMENT = re.compile(r"attachment://([0-9a-f]{32})")
_FINISH = {"max_tokens": "length", "model_length": "length", "unknown": None}
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}  # as its own value_to_float has them
NAME = re.compile(r"\d{4}-\d\d-\d\dT[\d:+-]+_(?P<task>.+)_[^_]+\.(eval|json)")


def recognises(value: dict[str, Any]) -> bool:
    log = value.get("eval")
    return isinstance(log, dict) and "task" in log and ("status" in value or "samples" in value)


def read(records: Iterator[Record], about: About, task: str) -> Iterator[Sample]:
    """Of .json. Raises ContractError."""
    for record in records:
        if not isinstance(record.value, dict) or not recognises(record.value):
            raise values.bad(record.where, record.value, "a log of Inspect has eval (with a task) and samples")
        name = task or _header(record.value, about)
        for i, sample in enumerate(record.value.get("samples") or (), 1):
            yield _sample(sample, f"{record.where}, sample {i}", name)


def read_eval(path: Path, about: About, progress: Progress) -> Iterator[Sample]:
    """Of .eval, sample by sample. Raises ContractError."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            names = {info.filename: info for info in archive.infolist()}  # of members with one name, the last counts
            header = names.get("header.json") or names.get("_journal/start.json")
            if header is None:
                inside = ", ".join(list(names)[:5])
                raise ContractError(f"{path} is a zip, and no log of Inspect: it has no header.json ({inside})")
            if header.filename != "header.json":
                about.notes.append(f"{path.name} was not finished: the samples that it has were read")
            task = _header(_json(file, header, path), about)
            members = [n for n in names if n.startswith("samples/") and n.endswith(".json")]
            for i, name in enumerate(members, 1):
                progress(i, len(members))
                yield _sample(_json(file, names[name], path), f"{path.name}, {name}", task)
    except (zipfile.BadZipFile, struct.error, zlib.error, zstandard.ZstdError) as error:
        raise ContractError(f"{path} is damaged: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error}") from None


def _json(file: IO[bytes], info: zipfile.ZipInfo, path: Path) -> Any:
    """The value of a member. Its data is found by its local header, for Python's zipfile refuses Zstandard before 3.14."""
    file.seek(info.header_offset)
    signature, name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    if signature != b"PK\x03\x04":
        raise zipfile.BadZipFile(f"no local header of {info.filename}")
    file.seek(name + extra, io.SEEK_CUR)
    data = file.read(info.compress_size)
    if info.compress_type == _ZSTANDARD:
        stream = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True)
        data = stream.read()
    elif info.compress_type == zipfile.ZIP_DEFLATED:
        data = zlib.decompress(data, -15)
    elif info.compress_type != zipfile.ZIP_STORED:
        raise ContractError(f"{path}: {info.filename} is compressed by method {info.compress_type}; known: 0, 8, 93")
    if len(data) != info.file_size or zlib.crc32(data) != info.CRC:
        raise zipfile.BadZipFile(f"{info.filename} has another checksum or length")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ContractError(f"{path}: {info.filename} is not JSON ({error})") from None


def _header(log: dict[str, Any], about: About) -> str:
    made = log.get("eval") or {}
    about.model(made.get("model"))
    task = str(made.get("task", ""))
    status = log.get("status")
    if status not in (None, "success"):
        about.notes.append(f"the log's status is {status!r}")
    for found in (log.get("results") or {}).get("scores") or ():
        for name, metric in (found.get("metrics") or {}).items():
            if name != "stderr" and type(metric.get("value")) in (int, float):
                about.reported[task, f"{found.get('name')}: {name}"] = float(metric["value"])
    return task


def _sample(plain: Any, where: str, task: str) -> Sample:
    if not isinstance(plain, dict) or "id" not in plain or "output" not in plain:
        raise values.bad(where, plain, "a sample of Inspect has id, epoch, input, output")
    try:
        plain = _attached(
            {k: plain.get(k) for k in ("input", "messages", "output", "target")}, plain.get("attachments")
        ) | {k: plain.get(k) for k in ("id", "epoch", "scores", "error", "choices")}
        prompt = values.prompt(plain["input"])
        if prompt is not None and plain["choices"]:
            prompt += "\n" + "\n".join(map(str, plain["choices"]))
        failed = None
        if plain["error"]:
            failed = str(plain["error"].get("message", plain["error"]))
        elif not (plain["output"] or {}).get("choices"):
            failed = str((plain["output"] or {}).get("error") or "no output")
        return Sample(
            where=where,
            task=task,
            id=str(plain["id"]),
            epoch=int(plain["epoch"] or 1),
            prompt=prompt,
            prompt_digest=values.digest(prompt),
            target=values.content(plain["target"]) or None,
            answers=() if failed else _answers(plain, where),
            scores=tuple(_scores(plain["scores"] or {})),
            failed=failed,
        )
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        if isinstance(error, ContractError):
            raise
        raise values.bad(where, plain, f"not a sample as Inspect writes it ({error!r})") from None


def _attached(value: Any, attachments: dict[str, str] | None) -> dict[str, Any]:
    """The value with its long texts in their places."""

    def put(part: Any) -> Any:
        if isinstance(part, str) and "attachment://" in part:
            return _ATTACHMENT.sub(lambda found: (attachments or {}).get(found[1], found[0]), part)
        if isinstance(part, list):
            return [put(item) for item in part]
        if isinstance(part, dict):
            return {key: put(item) for key, item in part.items()}
        return part

    return cast(dict[str, Any], put(value))


def _answers(plain: dict[str, Any], where: str) -> tuple[Answer, ...]:
    """All that the model said in turn; the last is the output, which is what was scored, with its log-probabilities."""
    said = [m for m in plain["messages"] or () if m.get("role") == "assistant"]
    outputs = []
    for choice in plain["output"]["choices"]:
        reason = choice.get("stop_reason")
        found = values.logprobs(choice.get("logprobs"), where)
        outputs.append(values.answer(values.spoken(choice["message"]), found, _FINISH.get(reason, reason)))
    if said and said[-1].get("id") == plain["output"]["choices"][0]["message"].get("id"):
        said.pop()
    return (*(values.answer(values.spoken(message)) for message in said), *outputs)


def _scores(scores: dict[str, Any]) -> Iterator[Score]:
    for scorer, given in scores.items():
        value = given.get("value") if isinstance(given, dict) else given
        if isinstance(value, dict):
            yield from (_score(f"{scorer}.{name}", inner) for name, inner in value.items())
        else:
            yield _score(scorer, value)


def _score(name: str, value: Any) -> Score:
    if isinstance(value, str) and value in _LETTERS:
        return Score(name, _LETTERS[value], value)
    return values.score(name, value)
