"""Options of `queueproof serve`, spelled and explained."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from queueproof.contract.errors import InvalidParameter

_SERVER, _ENGINE, _RECEIPTS = "Server", "Engine", "Receipts"
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30}


class ReceiptMode(StrEnum):
    FULL = "full"
    HASH = "hash"
    OFF = "off"


ModelArgument = Annotated[
    str | None, typer.Argument(help="A known name, a path, or a Hugging Face id.  [default: smollm2-135m]")
]
ClassOption = Annotated[
    str | None, typer.Option("--class", help="Of requests that ask for none.  [default: the strongest on offer]")
]
BestEffortOption = Annotated[
    bool,
    typer.Option(
        "--best-effort", help="Offer the libraries' own kernels, too: no promise, and a second copy in memory."
    ),
]
PriceOption = Annotated[
    bool, typer.Option("--price", help="Measure at start-up what each class costs, against best-effort.")
]
JsonReadyOption = Annotated[
    bool, typer.Option("--json-ready", help="When ready, print one line of JSON on standard output, not a table.")
]

HostOption = Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_SERVER)]
PortOption = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.", rich_help_panel=_SERVER)]
ServedNameOption = Annotated[
    list[str] | None, typer.Option(help="What requests call the model; may be repeated.", rich_help_panel=_SERVER)
]
ApiKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Opens the server; may be repeated. Better in QUEUEPROOF_API_KEY, where `ps` shows nothing.",
        rich_help_panel=_SERVER,
    ),
]
AdminOption = Annotated[
    bool, typer.Option("--admin", help="Add the administrator's route, /reset_prefix_cache.", rich_help_panel=_SERVER)
]
OriginOption = Annotated[
    list[str] | None,
    typer.Option(help="Origin of a web page that may call this server; may be repeated.", rich_help_panel=_SERVER),
]
MaxWaitingOption = Annotated[
    int | None,
    typer.Option(min=0, help="Sequences that may wait for an engine.  [default: 1024]", rich_help_panel=_SERVER),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(min=0.0, help="Seconds for an answer; 0 sets no limit.  [default: 600]", rich_help_panel=_SERVER),
]
MaxBodyOption = Annotated[
    str | None, typer.Option(help="Largest body of a request.  [default: 4MiB]", rich_help_panel=_SERVER)
]
GraceOption = Annotated[
    float | None,
    typer.Option(
        min=0.0, help="Seconds for running answers when the server ends.  [default: 30]", rich_help_panel=_SERVER
    ),
]
LogLevelOption = Annotated[str, typer.Option(help="debug, info, warning or error.", rich_help_panel=_SERVER)]
OtlpOption = Annotated[
    str | None, typer.Option(help="Where traces go (OpenTelemetry over HTTP).", rich_help_panel=_SERVER)
]

MaxSeqsOption = Annotated[
    int | None, typer.Option(help="Sequences in one step.  [default: by device]", rich_help_panel=_ENGINE)
]
ChunkOption = Annotated[
    int | None,
    typer.Option(
        "--max-num-batched-tokens",
        "--chunk",
        help="Tokens in one step; longer prompts are cut.  [default: by device]",
        rich_help_panel=_ENGINE,
    ),
]
KvMemoryOption = Annotated[
    str | None,
    typer.Option(help="Of each engine's cache, e.g. 2GiB or 500M.  [default: by device]", rich_help_panel=_ENGINE),
]
BlockSizeOption = Annotated[
    int | None, typer.Option(help="Keys in a block of the cache.  [default: by device]", rich_help_panel=_ENGINE)
]
MaxLenOption = Annotated[
    int | None,
    typer.Option(help="Prompt and answer together.  [default: what the model was made for]", rich_help_panel=_ENGINE),
]
PolicyOption = Annotated[
    str, typer.Option(help="Who is admitted next: fcfs, random or longest-first.", rich_help_panel=_ENGINE)
]
SpeculationOption = Annotated[
    int, typer.Option(help="Tokens that are guessed and verified in one step; 0: none.", rich_help_panel=_ENGINE)
]

ReceiptsOption = Annotated[
    ReceiptMode, typer.Option(help="They hold everything, digests only, or are not made.", rich_help_panel=_RECEIPTS)
]
ReceiptsPathOption = Annotated[
    Path | None,
    typer.Option(help="The file that keeps them.  [default: in the user's data folder]", rich_help_panel=_RECEIPTS),
]
ReceiptsAgeOption = Annotated[
    float, typer.Option(min=0.0, help="Days for which they are kept.", rich_help_panel=_RECEIPTS)
]
ReceiptsCountOption = Annotated[int, typer.Option(min=1, help="How many are kept.", rich_help_panel=_RECEIPTS)]
SigningKeyOption = Annotated[
    Path | None,
    typer.Option(help="Private key that signs them (`queueproof keys new`).", rich_help_panel=_RECEIPTS),
]


def in_bytes(name: str, text: str) -> int:
    """A size as people write it: 4096, 500M, 2GiB. Raises InvalidParameter."""
    number = text.strip().lower().removesuffix("b")
    digits = number.rstrip("kmgi")
    unit = _UNITS.get(number[len(digits) :])
    try:
        value = float(digits)
        size = int(value * unit) if unit is not None else 0
    except (ValueError, OverflowError):
        size = 0
    if size < 1:
        raise InvalidParameter(name, text, "it must be a number of bytes, such as 4096, 500M or 2GiB")
    return size
