"""Which schedules are fast where they are used: in a decode step of a few layers, with the kernels around them.

A product alone keeps the memory busy all the time; in a layer, small kernels stand between products, and a product that
asks for its weights while they run is faster than the one that wins alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from gpu_candidates import MODELS, Job, Shape, asking_ahead

from queueproof.kernels.ops import Limits
from queueproof.kernels.triton.backend import TritonBackend
from queueproof.kernels.triton.card import find_card
from queueproof.kernels.triton.executor import TritonExecutor
from queueproof.kernels.triton.linear import Tile
from queueproof.kernels.triton.products import Products, padded_rows
from queueproof.kernels.triton.schedules import Kind, Schedule, Vendor, proposals, to_json
from tests.support.gpu_model import load_synthetic, preset
from tests.support.tiny import Sequence, step

if TYPE_CHECKING:
    from gpu_kernels import Tuning

LAYERS, CONTEXT, BLOCK = 4, 200, 64  # layers of the step, keys before it, keys of a block
OWN_TRIED, VENDOR_TRIED, ROUNDS, PASSES = 5, 2, 9, 2


class StepGraph:
    """A decode step, captured with the schedules that hold now. Its logits stay where the graph writes them."""

    def __init__(self, executor: TritonExecutor, rows: int) -> None:
        executor._run(rows, True, with_head=True)
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._logits = executor._run(rows, True, with_head=True)
        self._graph.replay()

    def logits(self) -> torch.Tensor:
        self._graph.replay()
        assert self._logits is not None
        return self._logits.view(torch.int32).clone()

    def time(self) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self._graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


class Layers:
    def __init__(self, model: str, most_rows: int) -> None:
        card = find_card()
        self.held: dict[Kind, Schedule] = {}
        self._measured = lambda kind, rows: proposals(card.name, card.family, kind, rows)
        self.products = Products(card, self._propose)
        backend = TritonBackend(card, graphs=False)
        backend.products = self.products
        forward = load_synthetic(preset(model, LAYERS), backend, 4 * CONTEXT, check=False).forward
        blocks = -(-(CONTEXT + 1) // BLOCK)
        limits = Limits(most_rows, most_rows, most_rows, most_rows * blocks, BLOCK, blocks * BLOCK)
        self.executor = TritonExecutor(forward, limits, card, self.products, graphs=False)
        self._blocks = blocks

    def _propose(self, kind: Kind, rows: int) -> list[Schedule]:
        return [self.held[kind]] if kind in self.held else self._measured(kind, rows)

    def begin(self, rows: int) -> None:
        """Puts a decode step of that many sequences in place."""
        assert padded_rows(rows) == rows
        sequences = []
        for i in range(rows):
            sequence = Sequence([5 + i] * (CONTEXT + 1), list(range(i * self._blocks, (i + 1) * self._blocks)))
            sequence.done = CONTEXT
            sequences.append((sequence, 1))
        self.executor.forward(step(sequences, BLOCK))

    def graph(self, kind: Kind, schedule: Schedule, rows: int) -> StepGraph:
        before = self.held.get(kind)
        self.held[kind] = schedule
        self.products.forget()
        try:
            return StepGraph(self.executor, rows)
        finally:
            if before is None:
                del self.held[kind]
            else:
                self.held[kind] = before


def tune_layers(model: str, tuning: Tuning, row_counts: list[int]) -> None:
    """Ranks anew, in the layer, what was best alone, with weights asked for ahead or not; writes it into the table."""
    from gpu_kernels import KEPT, interleaved, kept, named

    shapes = [s for s in MODELS[model] if s.name != "gate_up_plain"]
    trials: dict[tuple[Shape, int], list[Schedule]] = {}
    jobs: list[Job] = []
    for (shape, rows), point in tuning.points.items():
        if shape not in shapes or (shape, rows) not in tuning.table:
            continue
        order = sorted(point.screened, key=point.screened.__getitem__)
        tiles = [s for s in order if isinstance(s, Tile)][:OWN_TRIED]
        tiles += [a for t in tiles[:3] for a in asking_ahead(t, shape.k)]
        trials[shape, rows] = [*tiles, *[s for s in order if isinstance(s, Vendor)][:VENDOR_TRIED]]
        jobs += [(t, shape.gated, shape.out, True) for t in tiles]
    tuning.compiler.compile(jobs)
    layers = Layers(model, max(row_counts))
    for rows in row_counts:
        layers.held = {s.kind: _best_alone(tuning, s, rows) for s in shapes if (s, rows) in trials}
        layers.begin(rows)
        layers.products.forget()
        want, start = (first := StepGraph(layers.executor, rows)).logits(), first.time()
        for _ in range(PASSES):
            for shape in [s for s in shapes if (s, rows) in trials]:
                if tuning.left() <= 0:
                    return
                graphs: dict[Schedule, StepGraph] = {}
                for schedule in trials[shape, rows]:
                    graph = layers.graph(shape.kind, schedule, rows)
                    if torch.equal(graph.logits(), want):
                        graphs[schedule] = graph
                    else:
                        print(f"  UNEQUAL in the layer: {shape.name} M={rows} {named(schedule)}", flush=True)
                times = interleaved(graphs, ROUNDS)
                ranked = sorted(times, key=times.__getitem__)
                layers.held[shape.kind] = ranked[0]
                trials[shape, rows] = list(dict.fromkeys([*ranked[:KEPT], *kept(ranked)]))
                tuning.table[shape, rows]["schedules"] = [to_json(s) for s in kept(ranked)]
                best = ", ".join(f"{times[s]:.1f} {named(s)}" for s in ranked[:3])
                vendor = next((f"{times[s]:.1f}" for s in ranked if isinstance(s, Vendor)), "-")
                print(f"  in the layer {shape.name:8s} M={rows:4d}: {best}; vendor {vendor}", flush=True)
        layers.products.forget()
        final = StepGraph(layers.executor, rows)
        both = interleaved({"first": first, "final": final}, ROUNDS)
        print(
            f"step of {LAYERS} layers, M={rows}: {start:.1f} us at first, {both['first']:.1f} -> {both['final']:.1f}",
            flush=True,
        )
        tuning.save()


def _best_alone(tuning: Tuning, shape: Shape, rows: int) -> Schedule:
    point = tuning.points[shape, rows]
    return min(point.screened, key=point.screened.__getitem__)
