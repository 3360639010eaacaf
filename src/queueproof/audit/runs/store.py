"""The samples of a run, kept so that a hundred thousand with all their texts do not fill the memory.

What they are found by stays in memory; the samples themselves go to a temporary file once they are many.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Self

from queueproof.audit.runs.model import Sample

_IN_MEMORY = 64 << 20  # bytes, of each run


@dataclass(slots=True)
class Entry:
    """What a sample is found by. document, prompt: the first bytes of the digests. at: where its variants are kept."""

    task: str
    id: str | None
    epoch: int
    document: bytes | None
    prompt: bytes | None
    position: int
    at: list[int]


class Store:
    """To be closed: the temporary file goes then. entries: in the order of the run."""

    def __init__(self, samples: Iterable[Sample] = ()) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - as long as the store
        self._end = 0
        self.entries: list[Entry] = []
        self.failed = 0
        self.tasks: Counter[str] = Counter()
        try:
            self._take(samples)
        except BaseException:
            self.close()
            raise

    def _take(self, samples: Iterable[Sample]) -> None:
        seen: Counter[tuple[str, str, str]] = Counter()
        variants: dict[tuple[str, str, int], Entry] = {}
        for sample in samples:
            epoch = sample.epoch
            if epoch is None and sample.id is not None:
                known = (sample.task, sample.id, sample.variant)
                seen[known] += 1
                epoch = seen[known]
            at = self._keep(sample)
            key = None if sample.id is None or not sample.variant else (sample.task, sample.id, epoch or 1)
            if key is not None and key in variants:
                variants[key].at.append(at)
                continue
            self.failed += sample.failed is not None
            entry = Entry(
                sample.task,
                sample.id,
                1 if epoch is None else epoch,
                _short(sample.document),
                _short(sample.prompt_digest),
                self.tasks[sample.task],
                [at],
            )
            self.tasks[sample.task] += 1
            self.entries.append(entry)
            if key is not None:
                variants[key] = entry

    def _keep(self, sample: Sample) -> int:
        at = self._end
        self._file.seek(at)
        pickle.dump(sample, self._file, pickle.HIGHEST_PROTOCOL)
        self._end = self._file.tell()
        return at

    def sample(self, entry: Entry) -> Sample:
        """The sample of an entry, with the scores of all its variants."""
        first, *others = self._variants(entry)
        if not others:
            return first
        return replace(first, scores=tuple(score for sample in (first, *others) for score in sample.scores))

    def _variants(self, entry: Entry) -> Iterator[Sample]:
        for at in entry.at:
            self._file.seek(at)
            yield pickle.load(self._file)  # this process wrote it

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _short(digest: str | None) -> bytes | None:
    """Half of a SHA-256 is plenty to tell a run's samples apart; what is no hexadecimal number is taken as it is."""
    if digest is None:
        return None
    try:
        return bytes.fromhex(digest[:32])
    except ValueError:
        return digest.encode()
