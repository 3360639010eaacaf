"""Where the time of a step goes: sums over kernels on the card, and over functions on the host."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Callable
from typing import Any

from queueproof.engine.engine import Engine
from queueproof.engine.sampling_params import SamplingParams

STEPS = 20  # of each measurement
SETTLE = 12  # steps before the first: prefill, and the first of decode
SHOWN = 40


def profile_decode(engine: Engine, prompts: list[list[int]], on_card: bool) -> dict[str, Any]:
    """Decode steps of these users, in microseconds a step.

    wall: without a profiler. kernels: [name, launches a step, µs a step], largest first (needs a card; with one, `busy` is
    their sum). host: [function, calls a step, µs a step of its own].
    """
    _add(engine, prompts, 3 * STEPS + 2 * SETTLE)

    def steps(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            engine.step()
        _wait(on_card)
        return 1e6 * (time.perf_counter() - start) / n

    steps(SETTLE)
    found = _measured(lambda: steps(STEPS), STEPS, on_card)
    while engine.has_work:
        engine.step()
    return found


def profile_prefill(engine: Engine, rounds: list[list[list[int]]], on_card: bool) -> dict[str, Any]:
    """The whole prefill of prompts, in microseconds a round; otherwise as `profile_decode`. rounds: four or more, each its
    own prompts."""
    left = iter(rounds)

    def whole() -> float:
        _add(engine, next(left), 1)
        start = time.perf_counter()
        while engine.has_work:
            engine.step()
        _wait(on_card)
        return 1e6 * (time.perf_counter() - start)

    whole()
    return _measured(whole, 1, on_card)


def _add(engine: Engine, prompts: list[list[int]], answer: int) -> None:
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True, detokenize=False)
    for ids in prompts:
        engine.add_request({"prompt_token_ids": ids}, params)


def _measured(run: Callable[[], float], steps: int, on_card: bool) -> dict[str, Any]:
    """run: takes so many steps, and returns microseconds of one."""
    found: dict[str, Any] = {"wall": run()}
    if on_card:
        found["kernels"] = _kernels(run, steps)
        found["busy"] = sum(k[2] for k in found["kernels"])
    profiler = cProfile.Profile()
    profiler.enable()
    run()
    profiler.disable()
    found["host"] = _functions(profiler, steps)
    return found


def _wait(on_card: bool) -> None:
    if on_card:
        import torch

        torch.cuda.synchronize()


def _kernels(run: Callable[[], float], steps: int) -> list[list[Any]]:
    import torch
    from torch.profiler import ProfilerActivity

    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        run()
    sums: dict[str, list[float]] = {}
    for event in profiler.key_averages():
        if event.self_device_time_total > 0:
            entry = sums.setdefault(event.key, [0.0, 0.0])
            entry[0] += event.count / steps
            entry[1] += event.self_device_time_total / steps
    return sorted(([name, *entry] for name, entry in sums.items()), key=lambda k: -k[2])


def _functions(profiler: cProfile.Profile, steps: int) -> list[list[Any]]:
    functions = []
    # stats: (file, line, function) to (primitive calls, calls, own seconds, cumulative seconds, callers)
    for (file, line, name), entry in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        where = f"{'/'.join(file.split('/')[-2:])}:{line} {name}" if line else name
        functions.append([where, entry[1] / steps, 1e6 * entry[2] / steps])
    return sorted(functions, key=lambda f: -f[2])[:SHOWN]


def profile_lines(title: str, found: dict[str, Any]) -> list[str]:
    lines = [f"{title}: {found['wall']:.0f} µs a step"]
    if "kernels" in found:
        lines.append(f"the card is busy {found['busy']:.0f} µs of them:")
        lines += [f"  {us:9.1f} µs  {n:6.1f} x  {name[:110]}" for name, n, us in found["kernels"][:SHOWN]]
    lines.append("the host (with the profiler's own cost):")
    return lines + [f"  {us:9.1f} µs  {n:6.1f} x  {name[:110]}" for name, n, us in found["host"][:20]]
