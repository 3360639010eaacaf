"""Standard streams that are closed, full, cut off, no text, or of an encoding without the answer's characters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import checkpoint, write_hf

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the shell's syntax")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_hf(checkpoint(tied=False), tmp_path_factory.mktemp("model")))


def shell(line: str, model: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Runs `line` with $Q for the command and $M for the model."""
    env = os.environ | {"Q": f"{sys.executable} -m queueproof", "M": model, "PYTHONUTF8": "0"} | environment
    return subprocess.run(["bash", "-c", line], env=env, input=stdin, capture_output=True, timeout=120, check=False)


def test_standard_input_that_is_no_text(model: str) -> None:
    result = shell("$Q generate - -m $M", model, stdin=b"\xff\xfe", PYTHONIOENCODING="utf-8:strict")
    assert result.returncode == 2 and b"standard input is no text" in result.stderr


def test_closed_streams(model: str) -> None:
    result = shell("$Q generate - -m $M <&-", model)
    assert result.returncode == 2 and b"standard input is closed" in result.stderr
    result = shell("$Q generate hi -m $M >&-", model)
    assert result.returncode == 4 and b"standard output is closed" in result.stderr
    result = shell("$Q generate hi -m $M --max-tokens 1 2>&-", model)
    assert result.returncode == 0 and result.stdout


def test_an_encoding_without_the_characters(model: str) -> None:
    options = "-m $M --max-tokens 60 --temperature 1 --seed 3"
    plain = shell(f"$Q generate hi {options}", model, PYTHONIOENCODING="ascii:strict")
    assert plain.returncode == 0 and b"\\ufffd" in plain.stdout
    narrow = shell(f"$Q generate hi --json {options}", model, PYTHONIOENCODING="ascii:strict")
    wide = shell(f"$Q generate hi --json {options}", model, PYTHONIOENCODING="utf-8:strict")
    assert json.loads(narrow.stdout) == json.loads(wide.stdout) and b"\\ufffd" not in wide.stdout


def test_a_file_name_that_is_no_text(model: str) -> None:
    result = shell("$Q generate --json -f $'/no/\\xff' -m $M", model, PYTHONIOENCODING="utf-8:strict")
    assert result.returncode == 2 and json.loads(result.stdout)["error"]["code"] == "usage"


def test_a_reader_that_leaves(model: str, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text("".join(json.dumps({"prompt": "a" * 200}) + "\n" for _ in range(500)))
    result = shell(f"$Q generate -f {tmp_path}/f.jsonl -m $M --max-tokens 1 | head -1; exit ${{PIPESTATUS[0]}}", model)
    assert result.returncode == 4 and b"Traceback" not in result.stderr


def test_json_nested_without_end(model: str, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text("[" * 100_000)
    result = shell(f"$Q generate -f {tmp_path}/f.jsonl -m $M", model)
    assert result.returncode == 2 and b"line 1 is not JSON" in result.stderr
