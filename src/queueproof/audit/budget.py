"""What a run may cost."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may cost. seconds: of wall time; tokens: of prompts and answers. None is no limit."""

    seconds: float | None = 300.0
    requests: int | None = None
    tokens: int | None = None

    def __str__(self) -> str:
        said = [f"{self.seconds:g} s"] if self.seconds is not None else []
        said += [f"{self.requests} requests"] if self.requests is not None else []
        said += [f"{self.tokens} tokens"] if self.tokens is not None else []
        return ", ".join(said) or "none"
