from __future__ import annotations

import asyncio
import json

import pytest
import typer
from typer.testing import CliRunner

from queueproof.cli.exits import ExitCode, exit_code, guarded
from queueproof.contract import errors


def run(error: BaseException | None, *arguments: str, returns: ExitCode | None = None):  # type: ignore[no-untyped-def]
    """A command that raises or returns, through typer."""
    app = typer.Typer()

    @app.command()
    @guarded
    def command(as_json: bool = typer.Option(False, "--json")) -> ExitCode | None:
        if error is not None:
            raise error
        return returns

    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidParameter("n", 0, "from 1"), 2),
        (errors.RequestTooLong("too long"), 2),
        (errors.UnsupportedClass("none"), 2),
        (errors.UnsupportedModel("none"), 2),
        (errors.ModelError("cut short"), 2),
        (errors.NumericalError("NaN"), 2),
        (errors.ContractError("malformed"), 2),
        (errors.CanaryError("other bits"), 1),
        (errors.CannotTell("no prompt"), 3),
        (errors.ServerError("gone"), 4),
        (errors.DownloadError("no network"), 4),
        (errors.EngineError("closed"), 4),
    ],
)
def test_an_error_of_the_tree_is_one_line_and_a_code(error: errors.QueueproofError, code: int) -> None:
    result = run(error)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr == f"queueproof: {error}\n"
    assert exit_code(error) == code


def test_json_has_the_error_too() -> None:
    result = run(errors.DownloadError("no\nnetwork"), "--json")
    assert result.exit_code == ExitCode.ENVIRONMENT
    assert json.loads(result.stdout) == {"error": {"code": "download", "message": "no network"}}
    assert result.stderr == "queueproof: no network\n"


def test_interruption_is_130_with_a_short_line() -> None:
    result = run(KeyboardInterrupt())
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_the_system_refuses() -> None:
    result = run(PermissionError(13, "Permission denied", "/somewhere"))
    assert result.exit_code == ExitCode.ENVIRONMENT
    assert "/somewhere" in result.stderr and result.stderr.count("\n") == 1


def test_a_defect_is_told_from_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    result = run(ZeroDivisionError("division by zero"))
    assert result.exit_code == ExitCode.DEFECT
    assert "ZeroDivisionError" in result.stderr and "Traceback" not in result.stderr
    monkeypatch.setenv("QUEUEPROOF_TRACEBACK", "1")
    assert "Traceback" in run(ZeroDivisionError("division by zero")).stderr


@pytest.mark.parametrize("code", list(ExitCode))
def test_a_command_chooses_its_code(code: ExitCode) -> None:
    assert run(None, returns=code).exit_code == code


def test_no_code_is_ok() -> None:
    assert run(None).exit_code == 0


def test_a_request_to_end_is_no_traceback() -> None:
    result = run(asyncio.CancelledError())
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_what_a_server_said_does_not_act_on_the_terminal() -> None:
    result = run(errors.ServerError("\x1b[31m \u202e \ud800"))
    assert result.exit_code == 4 and result.stderr == "queueproof: [U+001B][31m [U+202E] [U+D800]\n"
