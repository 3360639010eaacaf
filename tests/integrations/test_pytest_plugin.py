"""The pytest plugin, in pytest runs of its own against endpoints of the zoo."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

import queueproof.integrations.same_answer  # noqa: F401  # pytester takes modules out again, and numpy goes in once only
import tests.support.zoo  # noqa: F401

pytest_plugins = ["pytester"]

QUIET = (
    "-p",
    "no:cacheprovider",
    "-p",
    "no:hypothesispytest",
)  # Hypothesis is imported anew for each summary: a second
PLUGIN = "queueproof.integrations.pytest_plugin"
ENDPOINT = """
import pytest
from tests.support.zoo import *

QUICK = dict(step=1e-3, prompt_token=0.0, running=0.0)

@pytest.fixture(scope="session")
def queueproof_transport():
    return Zoo(Faults({faults}), Offer({offer}), Pace(**(QUICK | dict({pace}))))
"""
TEST = """
def test_it(queueproof_endpoint):
    result = queueproof_endpoint.same_answer({prompts}, {arguments})
    print("compared:", result.compared, "changed:", result.changed, *[w.claim for w in result.witnesses])
"""
TWO = '["Why is the sky blue?", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Rivers?"}]]'
URL = "--queueproof-url=http://zoo"


@pytest.fixture
def tested(pytester: pytest.Pytester) -> pytest.Pytester:
    """A run of its own."""
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    return pytester


def run(
    tested: pytest.Pytester,
    *options: str,
    faults: str = "",
    offer: str = "",
    pace: str = "",
    prompts: str = TWO,
    arguments: str = "crowd=4, max_tokens=12",
) -> pytest.RunResult:
    tested.makeconftest(ENDPOINT.format(faults=faults, offer=offer, pace=pace))
    tested.makepyfile(TEST.format(prompts=prompts, arguments=arguments))
    installed = any(found.value == PLUGIN for found in entry_points(group="pytest11"))  # then it is loaded already
    load = () if installed else ("-p", PLUGIN)
    return tested.runpytest_inprocess(*load, *QUIET, "-rA", *options)


def test_the_same_answers_pass(tested: pytest.Pytester) -> None:
    found = run(tested, URL)
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["compared: 4 changed: 0 4 of a crowd of 4 were seen to run at once"])


def test_more_prompts_than_a_crowd_has_room_for(tested: pytest.Pytester) -> None:
    found = run(tested, URL, prompts='["a", "b", "c", "d", "e"]', arguments="crowd=2, max_tokens=12")
    found.assert_outcomes(passed=1)
    found.stdout.fnmatch_lines(["compared: 6 changed: 0 *"])


def test_a_difference_fails_with_both_texts(tested: pytest.Pytester) -> None:
    found = run(tested, URL, faults="batch_from=2, scale=3.0", arguments="crowd=4, max_tokens=24")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        [
            "*queueproof_endpoint.same_answer*",
            "E *AnswersDiffer: * of 4 answers changed in a crowd of 4",
            "E *prompt '1: Why is the sky blue?', 4 at once: the answers part at token *",
            "E *alone: *",
            "E *in a crowd of 4: *",
            "E * ^ the first difference",
            "E *asked alone again, it was the same as alone",
        ]
    )
    assert "same_answer.py" not in found.stdout.str()  # the traceback ends in the test


def test_an_unstable_endpoint_is_not_blamed_on_the_crowd(tested: pytest.Pytester) -> None:
    found = run(tested, URL, faults="unstable=1.0, scale=3.0")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["E *asked alone again, it was another answer too*"])


def test_log_probabilities_are_part_of_the_answer_unless_told_otherwise(tested: pytest.Pytester) -> None:
    moved = "batch_from=2, scale=1e-9"
    found = run(tested, URL, faults=moved)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["E *log-probabilities differ from token * on, *by up to *"])
    run(tested, URL, faults=moved, arguments='crowd=4, max_tokens=12, compare="tokens"').assert_outcomes(passed=1)


def test_a_crowd_that_was_not_together_shows_nothing(tested: pytest.Pytester) -> None:
    found = run(tested, URL, pace="slots=1")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(
        ["E *Inconclusive: 0 of 4 answers changed, but that needs 2 at once: 1 of a crowd of 4*"]
    )
    allowed = "crowd=4, max_tokens=12, allow_inconclusive=True"
    run(tested, URL, pace="slots=1", arguments=allowed).assert_outcomes(passed=1)


def test_no_witness_at_all(tested: pytest.Pytester) -> None:
    found = run(tested, URL, offer="metrics=False, whole=True")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["E *no /metrics, and its streams do not interleave*"])


def test_an_endpoint_without_log_probabilities(tested: pytest.Pytester) -> None:
    found = run(tested, URL, offer="logprobs=False")
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["E *Inconclusive: *gives no log-probabilities: compare='tokens' does without*"])


@pytest.mark.parametrize(
    "prompts, arguments, says",
    [
        ('"Why?"', "crowd=4", "prompts='Why?' is not supported: it must be a list"),
        ("[]", "crowd=4", "it must be a list with at least one prompt"),
        ('["Why?"]', "crowd=1", "crowd=1 is not supported"),
        ('[[{"role": "user"}]]', "crowd=4", "each must be a text, or a list of messages"),
        ("[[]]", "crowd=4", "each must be a text, or a list of messages"),
        ("[5]", "crowd=4", "each must be a text, or a list of messages"),
        ('["Why?"]', 'compare="texts"', "it must be tokens or logprobs"),
    ],
)
def test_what_cannot_be_asked(tested: pytest.Pytester, prompts: str, arguments: str, says: str) -> None:
    found = run(tested, URL, prompts=prompts, arguments=arguments)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines([f"E *InvalidParameter: *{says}*".replace("[", "[[]")])


def test_without_an_address_it_is_an_error_unless_the_ini_says_otherwise(tested: pytest.Pytester) -> None:
    found = run(tested)
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["*no endpoint to test: give --queueproof-url*"])
    tested.makeini("[pytest]\nqueueproof_without_url = skip\n")
    run(tested).assert_outcomes(skipped=1)
    tested.makeini("[pytest]\nqueueproof_without_url = maybe\n")
    found = run(tested)
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["*queueproof_without_url is 'maybe'; it must be error or skip"])


def test_the_ini_file_may_hold_all_of_it(tested: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    ini = "queueproof_url = http://zoo\nqueueproof_model = {}\nqueueproof_api_key_env = ZOO_KEY\n"
    tested.makeini("[pytest]\n" + ini.format("zoo"))
    found = run(tested)
    found.assert_outcomes(errors=1)
    found.stdout.fnmatch_lines(["*environment variable ZOO_KEY, which is not set"])
    monkeypatch.setenv("ZOO_KEY", "secret")
    run(tested).assert_outcomes(passed=1)
    tested.makeini("[pytest]\n" + ini.format("other"))
    found = run(tested)
    found.assert_outcomes(failed=1)
    found.stdout.fnmatch_lines(["E *other*"])
    assert "secret" not in found.stdout.str()


def test_loading_it_imports_nothing_heavy() -> None:
    """It is loaded in every run of pytest where Queueproof is installed."""
    heavy = ("numpy", "scipy", "httpx", "numba", "queueproof.audit", "queueproof.contract")
    code = f"import sys, {PLUGIN}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
