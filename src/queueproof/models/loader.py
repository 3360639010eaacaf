"""A model from its files to packed weights, ready for an executor."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path

from queueproof.contract.errors import InvalidParameter, ModelError
from queueproof.kernels import canary
from queueproof.kernels.ops import Backend
from queueproof.models import gguf_config, hf_config
from queueproof.models.assemble import Progress, assemble
from queueproof.models.chat import ChatTemplate, template_of_folder
from queueproof.models.config import ModelConfig
from queueproof.models.decoder import Decoder
from queueproof.models.store import resolve
from queueproof.models.tokenizer import Tokenizer
from queueproof.models.tokenizer_gguf import read_gguf_tokenizer
from queueproof.models.tokenizer_spec import TokenizerSpec, read_hf, read_tokenizer_config, special_texts
from queueproof.models.weights.expected import check_tensors
from queueproof.models.weights.gguf import open_gguf
from queueproof.models.weights.gguf_file import read_gguf
from queueproof.models.weights.safetensors import INDEX, open_safetensors, weight_files
from queueproof.models.weights.source import DtypeChoice, WeightSource


@dataclass(frozen=True)
class LoadedModel:
    """A model packed for one backend. Any number of engines may share it.

    max_len: positions it was loaded for. files: what its answers depend on, configuration and weights; the tokenizer
    has a digest of its own.
    """

    config: ModelConfig
    forward: Decoder
    tokenizer: Tokenizer
    name: str
    backend: Backend
    max_len: int
    files: tuple[Path, ...] = field(repr=False)

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template, or None if the model has none."""
        template = self.tokenizer.chat_template
        return None if template is None else template.source

    @cached_property
    def digest(self) -> str:
        """SHA-256 over the files' names and contents and the 16-bit type, hex. Reads all weights the first time."""
        digest = hashlib.sha256()
        for path in self.files:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
            # A single file may be called anything; in a folder the names are part of the model.
            digest.update(f"{path.name if len(self.files) > 1 else ''}\0{content}\n".encode())
        digest.update(self.config.dtype.encode())
        return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Parts:
    config: ModelConfig
    weights: WeightSource
    tokenizer: TokenizerSpec
    template: str | None
    special_texts: dict[str, str]
    files: tuple[Path, ...]


def load_model(
    ref: str | PathLike[str],
    backend: Backend,
    dtype: str = "auto",
    progress: Progress | None = None,
    max_len: int | None = None,
    cache_dir: Path | None = None,
) -> LoadedModel:
    """Loads a model by name, path or Hugging Face id (store.resolve) and packs it for a backend.

    dtype: "auto", "bfloat16" or "float16" (weights/source.py). progress: called with (what, done, of how much).
    max_len: positions that will be used; default and upper bound is the model's own max_position.
    Compiles the kernels if this machine has not yet, and runs the canary of the backend's arithmetic before any weight is
    packed: kernels that do not keep it load nothing.
    Raises InvalidParameter, UnsupportedModel, ModelError, DownloadError and CanaryError.
    """
    choice = _dtype_choice(dtype)
    path = resolve(ref, progress=progress, cache_dir=cache_dir)
    parts = _read_folder(path, choice) if path.is_dir() else _read_file(path, choice)
    config = parts.config
    if max_len is not None and not 1 <= max_len <= config.max_position:
        raise InvalidParameter(
            "max_len", max_len, f"1 to {config.max_position} positions are, as the model was made for"
        )
    check_tensors(config, parts.weights, str(path))
    backend.warm_up(None if progress is None else lambda what: progress(what, 0, 0))
    canary.require(backend.arithmetic, backend.device)
    packer = backend.packer(config.dtype)
    forward = assemble(config, parts.weights, packer, max_len or config.max_position, progress)
    template = None
    if parts.template is not None:
        template = ChatTemplate(parts.template, _special_texts(parts, config), str(path))
    tokenizer = Tokenizer(parts.tokenizer, config.bos_id, config.eos_ids, template)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} ids, the model {config.vocab_size}; "
            "tokenizer and weights do not belong together"
        )
    return LoadedModel(config, forward, tokenizer, name_of(ref), backend, max_len or config.max_position, parts.files)


def _dtype_choice(dtype: str) -> DtypeChoice:
    match dtype:
        case "auto" | "bfloat16" | "float16":
            return dtype
    raise InvalidParameter("dtype", dtype, "'auto', 'bfloat16' and 'float16' are")


def _read_folder(folder: Path, dtype: DtypeChoice) -> _Parts:
    if not (folder / "config.json").is_file() and (found := sorted(folder.glob("*.gguf"))):
        raise ModelError(f"{folder} has no config.json; to load a GGUF file, name the file itself: {found[0]}")
    files = hf_config.read_files(folder)
    # The configuration first: an unsupported model should be called that, whatever its weights look like.
    hf_config.from_hf(files, "bfloat16")
    weights = open_safetensors(folder, dtype)
    config = hf_config.from_hf(files, weights.dtype)
    names = ["config.json", "generation_config.json", INDEX]
    read = [folder / n for n in names if (folder / n).is_file()] + list(weight_files(folder))
    template, texts = template_of_folder(folder), special_texts(read_tokenizer_config(folder))
    return _Parts(config, weights, read_hf(folder, config.bos_id), template, texts, tuple(read))


def _read_file(path: Path, dtype: DtypeChoice) -> _Parts:
    gguf = read_gguf(path)
    gguf_config.from_gguf(gguf, "bfloat16")
    weights = open_gguf(gguf, gguf_config.gguf_head_dim(gguf), dtype)
    config = gguf_config.from_gguf(gguf, weights.dtype)
    key = "tokenizer.chat_template"
    template = gguf.metadata.text(key) if key in gguf.metadata else None
    return _Parts(config, weights, read_gguf_tokenizer(gguf.metadata), template, {}, (path,))


def _special_texts(parts: _Parts, config: ModelConfig) -> dict[str, str]:
    """bos_token and eos_token as a template writes them: from tokenizer_config.json, else by their ids."""
    ids = {"bos_token": config.bos_id, "eos_token": config.eos_ids[0] if config.eos_ids else None}
    texts = parts.tokenizer.tokens
    return {name: texts[i] for name, i in ids.items() if i is not None and i in texts} | parts.special_texts


def name_of(ref: str | PathLike[str]) -> str:
    """What the model is called in answers: the name or id as given, or the last part of a path."""
    text = fspath(ref)
    path = Path(text)
    return path.resolve().name if path.exists() else text
