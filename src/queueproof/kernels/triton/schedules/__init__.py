"""What was measured to be fast: which schedules to try, in this order, for a product on a card.

One file a card, `<name of the card>.json`, written by benchmarks/gpu_kernels.py --tune. Nothing in it can move a bit, and
nothing has to be in it: other cards and other shapes take the nearest measured shape, or `default_tiles`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from queueproof.contract.errors import QueueproofError
from queueproof.kernels.triton.linear import Tile

VENDOR_FROM_ROWS = 48  # of an unknown card: from here the vendor's product is tried first
STANDARD_CARD = "NVIDIA H200"  # stands in for other cards of its family


@dataclass(frozen=True, slots=True)
class Vendor:
    """cuBLASLt's algorithm with this configuration, or its own first choice where it has none like it."""

    algorithm: tuple[tuple[str, int], ...] = ()


Schedule = Tile | Vendor


@dataclass(frozen=True, slots=True)
class Kind:
    """A product. out: "h16" or "f32"; n: rows of the weights, gate and up together."""

    n: int
    k: int
    gated: bool
    out: str


def slug(card: str) -> str:
    """The file name of a card: "NVIDIA H200" is nvidia-h200."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


def to_json(schedule: Schedule) -> dict[str, Any]:
    if isinstance(schedule, Vendor):
        return {"kind": "vendor", "algorithm": dict(schedule.algorithm)}
    values = {f.name: getattr(schedule, f.name) for f in fields(Tile)}
    return {"kind": "wide" if values.pop("wide") else "narrow", **values}


def from_json(values: dict[str, Any]) -> Schedule:
    rest = dict(values)
    kind = rest.pop("kind")
    if kind == "vendor":
        return Vendor(tuple(rest["algorithm"].items()))
    return Tile(wide=kind == "wide", **rest)


@cache
def _table(card: str) -> dict[Kind, dict[int, list[Schedule]]]:
    """By product, then by rows, best first. Empty for a card that has no file."""
    path = files(__package__) / f"{slug(card)}.json"
    if not path.is_file():
        return {}
    try:
        table: dict[Kind, dict[int, list[Schedule]]] = {}
        for e in json.loads(path.read_text())["entries"]:
            kind = Kind(e["n"], e["k"], e["gated"], e["out"])
            table.setdefault(kind, {})[e["rows"]] = [from_json(s) for s in e["schedules"]]
    except (ValueError, KeyError, TypeError) as error:
        raise QueueproofError(f"{path}: not a table of schedules ({error!r}); reinstall, or write it anew") from error
    return table


def measured(card: str) -> list[Kind]:
    """The products in a card's file."""
    return list(_table(card))


def _distance(a: Kind, b: Kind) -> float:
    return abs(math.log(a.n / b.n)) + abs(math.log(a.k / b.k))


def proposals(card: str, family: str, kind: Kind, rows: int) -> list[Schedule]:
    """Schedules to try, best first; may be empty. Those of the nearest measured product, at the next measured row count."""
    table = _table(card) or (_table(STANDARD_CARD) if family == "sm90" else {})
    alike = [k for k in table if (k.gated, k.out) == (kind.gated, kind.out)]
    if not alike:
        return []
    by_rows = table[min(alike, key=lambda k: _distance(k, kind))]
    at = min((r for r in by_rows if r >= rows), default=max(by_rows))
    return by_rows[at]


def default_tiles(rows: int) -> list[Schedule]:
    """For cards without a measurement; the last one fits every card."""
    bm = 16 if rows <= 16 else 32 if rows <= 32 else 64
    vendor: list[Schedule] = [Vendor()] if rows >= VENDOR_FROM_ROWS else []
    if rows <= 64:
        tiles = [Tile(True, 64, bm, 128, 4, 4), Tile(False, 32, bm, 128, 4, 4, ahead=4)]
    else:
        tiles = [Tile(True, 128, 128, 64, 8, 4, swap=False), Tile(False, 64, 64, 64, 4, 4)]
    return [*vendor, *tiles, Tile(False, 32, 32, 64, 4, 3)]
