"""contract.yaml: what an endpoint promises, as people write it down. Schema: docs/audit-contract.schema.json.

Reading is strict: an unknown key, a key written twice, a value of another kind is an error that says where and what is
allowed. Scalars are read as JSON has them, so `no`, `1:30` and `010` are texts and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from queueproof.audit import names
from queueproof.audit.price.load import MOST_USERS
from queueproof.contract import codec
from queueproof.contract.axes import Axis
from queueproof.contract.classes import DeterminismClass
from queueproof.contract.errors import ContractError

SCHEMA_VERSION = "queueproof/audit-contract/1"
DETECT = 0.05  # of answers that may change unseen, where the contract does not say
_MAX_BYTES = 1 << 16
_SHARE = r"^\d+(\.\d+)?%$"
_DEFAULTS: dict[str, Any] = {"axes": [], "also": [], "compare": "logprobs", "detect": DETECT}


class Compare(StrEnum):
    """LOGPROBS: tokens, and log-probabilities bit for bit. TOKENS: tokens alone."""

    TOKENS = "tokens"
    LOGPROBS = "logprobs"


class Also(StrEnum):
    """Promises beside the axes, each by the name of its probe. ALONE is promised wherever an axis is."""

    ALONE = names.ALONE
    SEEDS = names.SEEDS
    STREAM = names.STREAM
    LOGPROBS = names.LOGPROBS
    DRIFT = names.DRIFT


# The probes that vary an axis. Parallelism and device cannot be varied from outside: that takes two endpoints.
PROBES: dict[Axis, tuple[str, ...]] = {
    Axis.NEIGHBOURS: (names.NEIGHBOURS,),
    Axis.ORDER: (names.ORDER,),
    Axis.SCHEDULE: (names.LOAD, names.LENGTHS),
    Axis.CACHE: (names.CACHE,),
    Axis.PHASE: (names.PHASE,),
    Axis.PARALLELISM: (names.AGAINST,),
    Axis.DEVICE: (names.AGAINST,),
}


@dataclass(frozen=True, slots=True)
class PriceCeiling:
    """What the promise may cost against `baseline`, an endpoint without it. Ratios are the endpoint's over the baseline's,
    at each number of users; a ceiling that is None is not promised."""

    baseline: str
    users: tuple[int, ...]
    max_tpot_ratio: float | None = None
    max_ttft_ratio: float | None = None
    min_throughput_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class AuditContract:
    """What an endpoint promises: a class or single axes, what else, and at what price.

    axes: those of the class where one is named. detect: the share of changed answers that may stay unseen, between 0 and
    1: an interval that reaches above it is inconclusive.
    """

    schema: str
    endpoint: str
    axes: tuple[Axis, ...]
    also: tuple[Also, ...]
    compare: Compare
    detect: float
    model: str | None = None
    class_: DeterminismClass | None = None
    price: PriceCeiling | None = None

    def probes(self) -> tuple[str, ...]:
        """The names of the probes that it needs, `against` among them where only a second endpoint can tell."""
        needed = [name for axis in self.axes for name in PROBES[axis]]
        needed = [names.ALONE, *needed, *self.also] if needed else list(self.also)
        return tuple(dict.fromkeys(str(name) for name in needed))


def read_contract(path: Path) -> AuditContract:
    """Raises ContractError, naming the file and the place."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ContractError(f"{path} cannot be read ({error.strerror}): name a contract.yaml") from None
    if len(content) > _MAX_BYTES:
        raise ContractError(f"{path} is longer than {_MAX_BYTES} bytes, the most that a contract has")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ContractError(f"{path} is not UTF-8: byte {error.start}") from None
    return parse_contract(text, str(path))


def parse_contract(text: str, where: str = "contract.yaml") -> AuditContract:
    """The contract of a YAML text. Raises ContractError that begins with `where`."""
    plain = _load(text, where)
    if not isinstance(plain, dict):
        raise ContractError(f"{where} must be a mapping that begins with `schema: {SCHEMA_VERSION}`, not {plain!r}")
    if plain.get("schema") != SCHEMA_VERSION:
        raise ContractError(f"{where}: schema is {plain.get('schema')!r}; this reader knows {SCHEMA_VERSION!r}")
    read = codec.from_plain(AuditContract, _normal({**_DEFAULTS, **plain}, where), where)
    _check(read, where)
    if read.class_ is not None:
        read = replace(read, axes=tuple(axis for axis in Axis if axis in read.class_.axes))
    if not (read.axes or read.also or read.price):
        raise ContractError(
            f"{where} promises nothing: name a class other than {DeterminismClass.BEST_EFFORT}, axes, also, or price"
        )
    return read


def json_schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of contract.yaml."""
    schema = codec.document_schema(AuditContract, "Queueproof audit contract", SCHEMA_VERSION)
    schema["required"] = ["schema", "endpoint"]
    fields, price = schema["properties"], schema["$defs"]["PriceCeiling"]["properties"]
    for address in (fields["endpoint"], price["baseline"]):
        address["pattern"] = "^https?://"
    fields["axes"]["uniqueItems"] = fields["also"]["uniqueItems"] = True
    number = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
    fields["detect"] = {"oneOf": [{"type": "string", "pattern": _SHARE}, number], "default": f"{DETECT:.0%}"}
    fields["compare"] = {**fields["compare"], "default": Compare.LOGPROBS.value}
    count = {"type": "integer", "minimum": 1, "maximum": MOST_USERS}
    price["users"] = {"oneOf": [count, {"type": "array", "items": count, "minItems": 1}]}
    for name in ("max_tpot_ratio", "max_ttft_ratio", "min_throughput_ratio"):
        price[name]["exclusiveMinimum"] = 0
    schema["not"] = {"required": ["class", "axes"]}
    return schema


def schema_text() -> str:
    """`json_schema()` as docs/audit-contract.schema.json holds it."""
    return codec.schema_text(json_schema())


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Safe, with the scalars of JSON and without keys that are written twice."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is no key", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is there twice", key.start_mark)
            seen.add(key.value)
        found: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return found


def _resolve(tag: str, pattern: str, first: str) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), list(first))


_resolve("null", r"null|~|", "n~\0")
_Loader.yaml_implicit_resolvers.setdefault("", []).extend(_Loader.yaml_implicit_resolvers["~"])  # nothing at all
_resolve("bool", r"true|false", "tf")
_resolve("int", r"-?(?:0|[1-9][0-9]*)", "-0123456789")
_resolve("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-0123456789")


def _load(text: str, where: str) -> Any:
    try:
        for event in yaml.parse(text, _Loader):
            if isinstance(event, yaml.AliasEvent):
                raise ContractError(f"{where}: aliases (*name) are not supported: write the value again")
            if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
                place = f"{where}, line {event.start_mark.line + 1}, column {event.start_mark.column + 1}"
                raise ContractError(f"{place}: tags ({event.tag}) are not supported: write the value as JSON has it")
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        raise ContractError(f"{where}{place}: {error.problem}") from None
    except ContractError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:  # ValueError: a number of thousands of digits
        raise ContractError(f"{where} is no YAML: {error}") from None


def _normal(plain: dict[str, Any], where: str) -> dict[str, Any]:
    """The values that may be written in two ways, in the one that the codec reads."""
    plain["detect"] = _share(plain["detect"], f"{where}.detect")
    price = plain.get("price")
    if isinstance(price, dict) and type(price.get("users")) is int:
        plain["price"] = {**price, "users": [price["users"]]}
    return plain


def _share(written: object, where: str) -> float:
    share: float | None = None
    if isinstance(written, str) and re.match(_SHARE, written):
        share = float(written[:-1]) / 100
    elif type(written) in (int, float):
        share = float(written)  # type: ignore[arg-type]
    if share is None or not 0 < share < 1:
        raise ContractError(f"{where} is {written!r}; it must be a share between 0 and 1, such as 5% or 0.05")
    return share


def _check(read: AuditContract, where: str) -> None:
    _address(read.endpoint, f"{where}.endpoint")
    if read.class_ is not None and read.axes:
        raise ContractError(f"{where} has both class and axes: a class is its axes; keep one of them")
    for name, named in (("axes", read.axes), ("also", read.also)):
        if len(set(named)) < len(named):
            raise ContractError(f"{where}.{name} names one thing twice: {', '.join(named)}")
    if read.price is not None:
        _check_price(read.price, f"{where}.price")


def _check_price(price: PriceCeiling, where: str) -> None:
    _address(price.baseline, f"{where}.baseline")
    if not price.users or min(price.users) < 1 or max(price.users) > MOST_USERS:
        raise ContractError(
            f"{where}.users is {list(price.users)}; it must be numbers of users from 1 to {MOST_USERS}, such as [1, 8, 32]"
        )
    ceilings = {
        "max_tpot_ratio": price.max_tpot_ratio,
        "max_ttft_ratio": price.max_ttft_ratio,
        "min_throughput_ratio": price.min_throughput_ratio,
    }
    if all(value is None for value in ceilings.values()):
        raise ContractError(f"{where} has no ceiling; there are: {', '.join(ceilings)}")
    for name, value in ceilings.items():
        if value is not None and value <= 0:
            raise ContractError(f"{where}.{name} is {value:g}; it must be above 0, and 1 means as the baseline")


def _address(url: str, where: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise ContractError(f"{where} is {url!r}; it must be an address such as http://localhost:8000")
