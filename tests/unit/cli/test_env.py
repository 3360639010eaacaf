from __future__ import annotations

from pathlib import Path

import pytest

from queueproof.cli.env import DEFAULT_MODEL, Settings, settings
from queueproof.contract.errors import InvalidParameter


def test_nothing_is_set() -> None:
    assert settings({}) == Settings(model=DEFAULT_MODEL, cache=None, threads=None, traceback=False)


def test_everything_is_set() -> None:
    read = settings(
        {
            "QUEUEPROOF_MODEL": "org/name",
            "QUEUEPROOF_CACHE": "/tmp/models",
            "QUEUEPROOF_THREADS": "3",
            "QUEUEPROOF_TRACEBACK": "1",
            "QUEUEPROOF_API_KEY": "sesame",
        }
    )
    assert read == Settings("org/name", Path("/tmp/models"), 3, True, "sesame") and "sesame" not in repr(read)


def test_empty_counts_as_unset() -> None:
    empty = dict.fromkeys(["QUEUEPROOF_MODEL", "QUEUEPROOF_CACHE", "QUEUEPROOF_THREADS", "QUEUEPROOF_TRACEBACK"], "")
    assert settings(empty) == Settings()


@pytest.mark.parametrize("threads", ["0", "-1", "two", "1.5", "²"])
def test_threads_that_are_no_number_are_refused(threads: str) -> None:
    with pytest.raises(InvalidParameter, match="QUEUEPROOF_THREADS"):
        settings({"QUEUEPROOF_THREADS": threads})
