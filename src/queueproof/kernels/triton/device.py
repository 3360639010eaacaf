"""Numbers of varying count on their way to a card and back, in stream order. On a processor copies are done at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from queueproof.kernels.ops import I32


@dataclass(frozen=True, slots=True)
class DeviceLogits:
    """values: f32 [R, V] on the card. tokens: i32, where a draw leaves its tokens for the next step's `StepBatch.drawn`."""

    values: torch.Tensor
    tokens: torch.Tensor


def _room(words: int) -> int:
    return 1 << max(10, (words - 1).bit_length())


class Pinned:
    """i32 words on the host that copies read or write, with the event behind the last copy."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.words = torch.empty(0, dtype=torch.int32)
        self._event = torch.cuda.Event() if self._cuda else None

    def ready(self, words: int) -> None:
        """Waits for the last copy and makes room."""
        self.wait()
        if self.words.numel() < words:
            self.words = torch.zeros(_room(words), dtype=torch.int32, pin_memory=self._cuda)

    def copied(self) -> None:
        if self._event is not None:
            self._event.record()

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()


class Upload:
    """Words to the card. The host may write the next ones while the card still copies: there are three pinned buffers."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._card = torch.empty(0, dtype=torch.int32, device=device)
        self._pinned = [Pinned(device) for _ in range(3)]
        self._turn = 0

    def words(self, count: int) -> I32:
        """i32 [count] to write into; anything may be in it."""
        self._turn = (self._turn + 1) % len(self._pinned)
        pinned = self._pinned[self._turn]
        pinned.ready(count)
        words: I32 = pinned.words.numpy()[:count]
        return words

    def send(self, count: int) -> torch.Tensor:
        """i32 [count] on the card: what `words` gave. Enqueues one copy; valid until the next `send`, in stream order."""
        if self._card.numel() < count:
            self._card = torch.empty(_room(count), dtype=torch.int32, device=self._device)
        pinned = self._pinned[self._turn]
        self._card[:count].copy_(pinned.words[:count], non_blocking=True)
        pinned.copied()
        return self._card[:count]


class Fetched:
    """Words that are on their way to the host."""

    def __init__(self, pinned: Pinned, count: int) -> None:
        self._pinned, self._count = pinned, count

    def wait(self) -> I32:
        """A copy of its own, i32 [count]."""
        self._pinned.wait()
        words: I32 = np.array(self._pinned.words.numpy()[: self._count])
        return words


class Download:
    """Words from the card: what was fetched stays readable until the fetch after the next one."""

    def __init__(self, device: torch.device) -> None:
        self._pinned = [Pinned(device) for _ in range(2)]
        self._turn = 0

    def fetch(self, source: torch.Tensor) -> Fetched:
        """Enqueues one copy of an i32 tensor."""
        self._turn = 1 - self._turn
        pinned, count = self._pinned[self._turn], source.numel()
        pinned.ready(count)
        pinned.words[:count].copy_(source, non_blocking=True)
        pinned.copied()
        return Fetched(pinned, count)
