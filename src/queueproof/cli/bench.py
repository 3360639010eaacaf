"""`queueproof bench`: tokens/s, TTFT and TPOT at several concurrencies, beside what this machine can do at most.

docs/checking.md explains the columns and how the ratios are formed.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from functools import reduce
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import (
    ArithmeticOption,
    JsonOption,
    ModelOption,
    ThreadsOption,
    model_name,
    threads_in_use,
)
from queueproof.contract.errors import InvalidParameter

if TYPE_CHECKING:
    from queueproof.cli.machine import MachineLimits
    from queueproof.engine.llm import LLM
    from queueproof.engine.prompts import Prompt

BATCHED_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Work:
    """What the matrix products of a model need. head: of the logits, done only for positions that draw a token.

    All layers count for every token, as in a model's FLOPs; what an engine leaves out of the last one is in its speed.
    """

    trunk_weights: int
    head_weights: int
    bytes_per_weight: float

    def seconds_at_least(self, limits: MachineLimits, steps: float, tokens: float, drawn: float) -> tuple[float, float]:
        """(seconds to read the weights once a step, seconds for the multiply-adds) at the machine's measured limits."""
        read = (self.trunk_weights + self.head_weights) * self.bytes_per_weight * steps
        flops = 2.0 * (self.trunk_weights * tokens + self.head_weights * drawn)
        return read / limits.read_bytes_per_s, flops / limits.flops_per_s


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the repeats. Seconds, tokens/s; the ratios are of decode (of the one prefill for phase "prefill")."""

    phase: str
    concurrency: int
    tokens_per_s: float
    ttft_s: float
    tpot_s: float | None
    memory_ratio: float
    fma_ratio: float


@guarded
def command(
    model: ModelOption = None,
    arithmetic: ArithmeticOption = "ieee/1",
    concurrency: Annotated[str, typer.Option(help="Numbers of users, separated by commas.")] = "1,8,24",
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Length of each prompt.")] = 64,
    output_tokens: Annotated[int, typer.Option(min=2, help="Length of each answer.")] = 64,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each row; medians are shown.")] = 3,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Measure the speed of an arithmetic against the limits of this machine, measured in the same run."""
    from queueproof.cli.loading import load, shown
    from queueproof.cli.machine import MachineLimits, measure
    from queueproof.engine.llm import LLM

    users, in_use = _users(concurrency), threads_in_use(threads)
    with shown(err()) as report:
        report("measuring memory and multiply-adds")
        measured = [measure(in_use)]
        loaded = load(model_name(model), arithmetic, report)
        config = loaded.config
        work = Work(config.trunk_weights, config.head_weights, loaded.forward.bytes_per_weight)
        rows = []
        prefill = max(BATCHED_TOKENS, prompt_tokens)
        options: dict[str, Any] = {
            "threads": in_use,
            "max_num_seqs": max(users),
            "max_num_batched_tokens": max(BATCHED_TOKENS, *users),
            "max_model_len": max(prefill, prompt_tokens + output_tokens) + 2,
            "enable_prefix_caching": False,
        }
        with LLM(loaded, **options) as llm:
            report("warming up")
            _run(llm, 1, prompt_tokens, 2)
            measured.append(measure(in_use))

            def limits_around() -> MachineLimits:
                """The machine just before and just after a row: other work comes and goes within a run."""
                measured.append(measure(in_use))
                return measured[-2].or_better(measured[-1])

            report("prefill")
            samples = [_run(llm, 1, prefill, 1) for _ in range(repeats)]
            rows.append(_prefill_row(samples, llm.engine.limits.max_tokens, work, limits_around(), prefill))
            for count in users:
                report(f"{count} user{'s' if count > 1 else ''}")
                samples = [_run(llm, count, prompt_tokens, output_tokens) for _ in range(repeats)]
                rows.append(_decode_row(samples, work, limits_around(), count))
    limits = reduce(MachineLimits.or_better, measured)
    if as_json:
        print_json(
            {
                "schema": "queueproof/bench/1",
                "model": loaded.name,
                "arithmetic": arithmetic,
                "prompt_tokens": prompt_tokens,
                "output_tokens": output_tokens,
                "repeats": repeats,
                "machine": asdict(limits),
                "rows": [asdict(row) for row in rows],
            }
        )
    else:
        _show(limits, rows, loaded.name, arithmetic)
    return ExitCode.OK


def _users(text: str) -> list[int]:
    try:
        users = [int(part) for part in text.split(",")]
    except ValueError:
        users = []
    if not users or min(users) < 1 or max(users) > 512:
        raise InvalidParameter("concurrency", text, "it must be integers from 1 to 512, separated by commas")
    return users


@dataclass(frozen=True, slots=True)
class _Sample:
    seconds: float
    ttft: float
    tpot: float
    tokens: int


def _run(llm: LLM, users: int, prompt_tokens: int, output_tokens: int) -> _Sample:
    """All users at once. TTFT and TPOT are medians over them."""
    from queueproof.engine.sampling_params import SamplingParams

    vocabulary = llm.engine.model.config.vocab_size
    # Any ids do: the cost does not depend on them. All different, so that users share nothing.
    prompts: list[Prompt] = [
        {"prompt_token_ids": [(7919 * (u * prompt_tokens + i) + 11) % vocabulary for i in range(prompt_tokens)]}
        for u in range(users)
    ]
    params = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - start
    first, per_token = [], []
    for output in outputs:
        metrics = output.metrics
        assert metrics.first_token_time is not None and metrics.finish_time is not None
        first.append(metrics.first_token_time - metrics.arrival_time)
        if output_tokens > 1:
            per_token.append((metrics.finish_time - metrics.first_token_time) / (output_tokens - 1))
    tpot = statistics.median(per_token) if per_token else 0.0
    return _Sample(seconds, statistics.median(first), tpot, users * output_tokens)


def _decode_row(samples: list[_Sample], work: Work, limits: MachineLimits, users: int) -> Row:
    tpot = statistics.median(s.tpot for s in samples)
    read, compute = work.seconds_at_least(limits, steps=1, tokens=users, drawn=users)
    return Row(
        "decode",
        users,
        statistics.median(s.tokens / s.seconds for s in samples),
        statistics.median(s.ttft for s in samples),
        tpot,
        read / tpot,
        compute / tpot,
    )


def _prefill_row(samples: list[_Sample], max_tokens: int, work: Work, limits: MachineLimits, length: int) -> Row:
    seconds = statistics.median(s.seconds for s in samples)
    steps = -(-length // max_tokens)
    read, compute = work.seconds_at_least(limits, steps=steps, tokens=length, drawn=1)
    return Row("prefill", 1, length / seconds, seconds, None, read / seconds, compute / seconds)


def _show(limits: MachineLimits, rows: list[Row], model: str, arithmetic: str) -> None:
    console = out()
    console.print(
        f"{model}, {arithmetic}, {limits.threads} threads; this machine reads {limits.read_bytes_per_s / 1e9:.1f} GB/s "
        f"and does {limits.of_products}",
        markup=False,
    )
    table = Table()
    for heading in ("phase", "users", "tokens/s", "TTFT ms", "TPOT ms", "of memory limit", "of FMA limit"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for row in rows:
        table.add_row(
            row.phase,
            str(row.concurrency),
            f"{row.tokens_per_s:.1f}",
            f"{1e3 * row.ttft_s:.1f}",
            "" if row.tpot_s is None else f"{1e3 * row.tpot_s:.2f}",
            f"{row.memory_ratio:.0%}",
            f"{row.fma_ratio:.0%}",
        )
    console.print(table)
