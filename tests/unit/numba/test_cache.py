"""The disk cache of compiled kernels: damaged, full or vanished, it costs a compilation and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from queueproof.kernels.numba import jit


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    monkeypatch.setattr(jit, "CACHE_DIR", folder)
    monkeypatch.setattr(jit, "KEPT", True)
    return folder


def fresh() -> Any:
    """The same small kernel as a new process would have it."""

    def add_three(x: int) -> int:
        return x + 3

    return jit.kernel(add_three)


def hits(compiled: Any) -> int:
    return sum(compiled.stats.cache_hits.values())


def stored(cache: Path, suffix: str) -> Path:
    (found,) = cache.rglob(f"*.{suffix}")
    return found


def test_machine_code_is_kept(cache: Path) -> None:
    first = fresh()
    assert jit.state().startswith("compiling")
    assert first(1) == 4
    assert jit.state() == "loading kernels"
    again = fresh()
    assert again(1) == 4 and hits(again) == 1


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def zeroed(data: bytes) -> bytes:
    """What a file system leaves after a power cut: the length without the contents."""
    return data[: len(data) // 2] + bytes(len(data) - len(data) // 2)


def flipped(data: bytes) -> bytes:
    return data[:-500] + bytes([data[-500] ^ 1]) + data[-499:]


@pytest.mark.filterwarnings("ignore:compiled kernels")
@pytest.mark.parametrize(
    ("suffix", "damage"),
    [(s, d) for s in ("nbi", "nbc") for d in (cut, zeroed, lambda _: b"")] + [("nbc", flipped)],
)
def test_a_damaged_file_is_made_again(cache: Path, suffix: str, damage: Callable[[bytes], bytes]) -> None:
    assert fresh()(1) == 4
    file = stored(cache, suffix)
    file.write_bytes(damage(file.read_bytes()))
    repairing = fresh()
    assert repairing(1) == 4 and hits(repairing) == 0
    repaired = fresh()
    assert repaired(1) == 4 and hits(repaired) == 1


def test_a_full_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(jit._Files, "_open_for_write", full)
    with pytest.warns(RuntimeWarning, match="No space left"):
        assert fresh()(1) == 4
    monkeypatch.setattr("numba.core.caching.UserProvidedCacheLocator.ensure_cache_path", full)
    assert fresh()(1) == 4
    assert not list(cache.rglob("*.nb?"))


def test_nothing_there_or_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.rmdir()
    assert jit.state().startswith("compiling")
    assert fresh()(1) == 4
    monkeypatch.setattr(jit, "KEPT", False)
    unkept = fresh()
    assert unkept(1) == 4 and hits(unkept) == 0
