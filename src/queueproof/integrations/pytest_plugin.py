"""Fixtures for tests of an endpoint; pytest loads them where Queueproof is installed.

```python
def test_answers_do_not_depend_on_the_crowd(queueproof_endpoint):
    queueproof_endpoint.same_answer(["Why is the sky blue?", "List five rivers."], crowd=32)
```

with `pytest --queueproof-url http://localhost:8000`. What asks is imported when the fixture is first used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from queueproof.integrations.same_answer import EndpointUnderTest

_KEY = "QUEUEPROOF_API_KEY"
_OPTIONS = {
    "queueproof_url": "address of the endpoint whose answers are tested, such as http://localhost:8000",
    "queueproof_model": "its model, where it has several",
    "queueproof_api_key_env": f"the environment variable that holds its API key (default: {_KEY}, where it is set)",
}
_WITHOUT_URL = "queueproof_without_url"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("queueproof", "answers of an LLM endpoint")
    for name, meaning in _OPTIONS.items():
        group.addoption(f"--{name.replace('_', '-')}", metavar="TEXT", help=meaning)
        parser.addini(name, meaning)
    parser.addini(
        _WITHOUT_URL,
        "what tests of an endpoint do where no address is given: `error` (a gate that is left out is none) or `skip`",
        default="error",
    )


@pytest.fixture(scope="session")
def queueproof_transport() -> Any:
    """The httpx transport that requests go through; None: the network. A conftest may give another, such as
    `httpx.ASGITransport(app)`."""
    return None


@pytest.fixture(scope="session")
def queueproof_endpoint(pytestconfig: pytest.Config, queueproof_transport: Any) -> Iterator[EndpointUnderTest]:
    """The endpoint under test: `same_answer(prompts, crowd=32)` fails where an answer depends on its company."""
    url = _setting(pytestconfig, "queueproof_url")
    if url is None:
        _without_url(pytestconfig)
    if getattr(pytestconfig, "workerinput", {}).get("workercount", 1) > 1:
        pytest.fail("nobody is alone beside other workers: run the tests of an endpoint with -n 1 or 0", pytrace=False)
    from queueproof.integrations.same_answer import EndpointUnderTest

    endpoint = EndpointUnderTest(
        str(url), _setting(pytestconfig, "queueproof_model"), _api_key(pytestconfig), queueproof_transport
    )
    yield endpoint
    endpoint.close()


def _setting(config: pytest.Config, name: str) -> str | None:
    """The option, else the ini value; None where both are empty."""
    return config.getoption(f"--{name.replace('_', '-')}") or str(config.getini(name)) or None


def _without_url(config: pytest.Config) -> None:
    message = "no endpoint to test: give --queueproof-url, or queueproof_url in the ini file"
    what = config.getini(_WITHOUT_URL)
    if what == "skip":
        pytest.skip(message)
    if what != "error":
        message = f"{_WITHOUT_URL} is {what!r}; it must be error or skip"
    pytest.fail(message, pytrace=False)


def _api_key(config: pytest.Config) -> str | None:
    variable = _setting(config, "queueproof_api_key_env")
    key = os.environ.get(variable or _KEY)
    if variable is not None and not key:
        pytest.fail(f"the API key is expected in the environment variable {variable}, which is not set", pytrace=False)
    return key or None
