"""A defect on purpose: an engine that does not wait for the tokens that penalties and guides depend on."""

from __future__ import annotations

import pytest

from queueproof.engine.pipeline import Pipeline
from queueproof.engine.request import Sequence


def wait_for_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Pipeline.needs_tokens

    def hasty(self: Pipeline, sequences: list[Sequence]) -> bool:
        penalised = [s.request for s in sequences]
        kept = [request.needs_history for request in penalised]
        for request in penalised:
            request.needs_history = False
        try:
            return real(self, sequences)
        finally:
            for request, was in zip(penalised, kept, strict=True):
                request.needs_history = was

    monkeypatch.setattr(Pipeline, "needs_tokens", hasty)
