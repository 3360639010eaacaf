"""`queueproof demo`: the problem and the cure on a real model, first the libraries' kernels, then `ieee/1`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queueproof.cli.env import DEFAULT_MODEL
from queueproof.cli.exits import ExitCode, err, guarded, out, print_json
from queueproof.cli.options import JsonOption, ModelOption, ThreadsOption, model_name, threads_in_use

if TYPE_CHECKING:
    from rich.console import Console

    from queueproof.cli.demo_runs import ArithmeticResult, RunResult
    from queueproof.cli.demo_screen import Screen

ARITHMETICS = ("vendor", "ieee/1")
REQUESTS = 24
MAX_TOKENS = 24


@guarded
def command(
    model: ModelOption = None,
    requests: Annotated[int, typer.Option(min=2, max=REQUESTS, help="How many of the 24 prompts to use.")] = REQUESTS,
    max_tokens: Annotated[int, typer.Option(min=1, max=512, help="Tokens of each answer, at most.")] = MAX_TOKENS,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> ExitCode:
    """Ask 24 questions alone, then again along every axis, and count the answers that changed.

    Exits with 1 if ieee/1 changed an answer, or if an axis did not move and so was not tried.
    """
    from queueproof.cli import demo_screen
    from queueproof.cli.demo_prompts import CONVERSATIONS
    from queueproof.cli.demo_runs import ArithmeticResult, Experiment
    from queueproof.cli.demo_screen import ALONE, live
    from queueproof.cli.loading import load, shown
    from queueproof.contract.classes import arithmetic_class

    name, in_use, console = model_name(model), threads_in_use(threads), err()
    results: list[ArithmeticResult] = []
    screen: Screen | None = None
    for arithmetic in ARITHMETICS:
        with shown(console) as progress:
            loaded = load(name, arithmetic, progress)
        prompts = [loaded.tokenizer.encode_chat(messages) for messages in CONVERSATIONS[:requests]]
        blas = blas_threads if arithmetic == "vendor" else None
        experiment = Experiment(loaded, prompts, max_tokens, in_use, blas_threads=blas)
        full = (name, requests, max_tokens) == (DEFAULT_MODEL, REQUESTS, MAX_TOKENS)
        screen = screen or demo_screen.Screen(ARITHMETICS, experiment.plans, requests, full)
        with live(screen, console):
            reference = experiment.alone(_each(screen, arithmetic, ALONE))
            screen.alone(arithmetic, reference)
            _log(console, screen, arithmetic, ALONE)
            runs = []
            for plan in experiment.plans:
                row = plan.axis.value
                _each(screen, arithmetic, row)(0, requests)
                runs.append(experiment.along(plan, reference, _each(screen, arithmetic, row)))
                screen.finished(arithmetic, runs[-1])
                _log(console, screen, arithmetic, row)
        results.append(ArithmeticResult(arithmetic, arithmetic_class(arithmetic).value, reference, tuple(runs)))
        decode = loaded.tokenizer.decode
        del loaded, experiment  # the weights of one arithmetic at a time
    assert screen is not None
    if as_json:
        print_json(summary(name, in_use, screen.seconds, results))
    else:
        demo_screen.report(out(), screen, results, decode)
    ours = results[-1]
    for axis in ours.unmoved:
        err().print(f"queueproof: {axis} did not move, so nothing is known about it", markup=False)
    return ExitCode.DIFFERENCE if ours.changed or ours.unmoved else ExitCode.OK


def _each(screen: Screen, arithmetic: str, row: str) -> Callable[[int, int], None]:
    """A progress callback that writes into a cell."""
    return lambda done, total: screen.running(arithmetic, row, done)


def _log(console: Console, screen: Screen, arithmetic: str, row: str) -> None:
    if not console.is_terminal:
        console.print(screen.line(arithmetic, row), markup=False, soft_wrap=True)


@contextmanager
def blas_threads(count: int) -> Iterator[int | None]:
    """The BLAS of NumPy on `count` threads, as far as it can be told; gives the number it uses, None if unknown."""
    from threadpoolctl import ThreadpoolController

    controller = ThreadpoolController().select(user_api="blas")
    with controller.limit(limits=count):
        used = {library["num_threads"] for library in controller.info()}
        yield used.pop() if len(used) == 1 else None


def summary(model: str, threads: int, seconds: float, results: Sequence[ArithmeticResult]) -> dict[str, Any]:
    """What `--json` prints. Counts are requests; a log-probability difference beyond all numbers is null."""
    return {
        "schema": "queueproof/demo/1",
        "model": model,
        "threads": threads,
        "seconds": round(seconds, 1),
        "results": [_arithmetic(result) for result in results],
    }


def _arithmetic(result: ArithmeticResult) -> dict[str, Any]:
    return {
        "arithmetic": result.arithmetic,
        "class": result.determinism_class,
        "requests": len(result.reference.answers),
        "changed": len(result.changed),
        "tokens_per_s": round(result.tokens_per_s, 1),
        "tokens_per_s_alone": round(result.tokens_per_s_alone, 1),
        "axes": {run.plan.axis.value: _axis(run) for run in result.runs},
    }


def _axis(run: RunResult) -> dict[str, Any]:
    difference = run.max_logprob_difference
    return {
        "changed": len(run.changes),
        "witness": run.witness,
        "witness_of": run.plan.witness_of,
        "what": run.plan.what,
        "tokens_changed": run.tokens_changed,
        "logprobs_changed": run.logprobs_changed,
        "first_token_changed": min((c.diff.first_id for c in run.changes if c.diff.first_id is not None), default=None),
        "max_logprob_difference": difference if math.isfinite(difference) else None,
        "largest_batch": run.stats.largest_batch,
        "split_prefills": run.stats.split_prefills,
        "preemptions": run.stats.preemptions,
        "prefix_cache_hit_tokens": run.stats.prefix_cache_hit_tokens,
        "guesses_accepted": run.stats.guesses_accepted,
        "seconds": round(run.seconds, 2),
    }
