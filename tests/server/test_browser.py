"""The live page in Chromium, in front of a real server process: what its user sees, with the mouse, the keyboard and a phone.

QUEUEPROOF_SCREENSHOTS names a folder that keeps the pictures; without it they go where pytest keeps temporary files.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from queueproof.server.routes.page import PageExtension
from queueproof.server.timeline import label_of
from tests.support.browser import Tab, chromium, find_chromium
from tests.support.checkpoints import checkpoint, write_hf
from tests.support.fake_engine import FakeEngine
from tests.support.server_process import ServerProcess
from tests.support.serving import NumberedReceipts, live

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(find_chromium() is None, reason="there is no Chromium (apt-get install chromium)"),
    pytest.mark.xdist_group("browser"),
]

LIVE = "document.querySelector('#status').dataset.state === 'live'"
JUDGED = "document.querySelector('#go').offsetParent && document.querySelector('#verdict').dataset.state"
KEY = "an-open-sesame"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    model = write_hf(checkpoint(), folder / "tiny")
    options = ("--best-effort", "--threads", "1", "--max-num-seqs", "16", "--served-model-name", "tiny")
    with ServerProcess(model, *options, log=folder / "log") as running:
        yield running


@pytest.fixture
def tab(tmp_path: Path) -> Iterator[Tab]:
    with chromium(tmp_path / "profile") as made:
        made.size(1280, 900)
        made.media(prefers_color_scheme="light")
        yield made


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    folder = Path(os.environ.get("QUEUEPROOF_SCREENSHOTS") or tmp_path / "pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def choose(tab: Tab, field: str, value: str) -> None:
    """As its user would, so that the page hears of it."""
    tab.run(
        f"(() => {{ const field = document.querySelector('#{field}'); field.value = '{value}';"
        " field.dispatchEvent(new Event('change', {bubbles: true})); })()"
    )
    assert tab.run(f"document.querySelector('#{field}').value") == value


def click(tab: Tab, selector: str) -> None:
    tab.run(f"document.querySelector({json.dumps(selector)}).click()")


def verdict(tab: Tab) -> tuple[str, str]:
    tab.wait(JUDGED, 90)
    return tab.run("document.querySelector('#verdict').dataset.state"), tab.text("#verdict")


def clean(tab: Tab, origin: str) -> None:
    """Nothing went wrong, and nothing was asked of anybody else."""
    assert tab.errors == []
    assert {url for url in tab.requests if not url.startswith(f"{origin}/")} == set()


def test_alone_and_in_the_crowd_and_a_replay(server: ServerProcess, tab: Tab, pictures: Path) -> None:
    tab.open(server.url)
    tab.wait(LIVE)
    assert "portable" in tab.text("#terms") and "ieee/1" in tab.text("#terms")
    assert tab.run("document.querySelectorAll('.axis.held').length") == 7
    tab.screenshot(pictures / "start.png", whole=True)
    choose(tab, "tokens", "192")
    click(tab, "#go")
    state, words = verdict(tab)
    assert state == "same", words
    assert "Same to the last bit" in words and "digests of both receipts" in words
    shared = re.search(r"shared its batch with up to (\d+) others", words)
    assert shared is not None and int(shared[1]) >= 5, words
    assert "alone in its batch" in tab.text("#alone-facts")
    assert tab.text("#alone-text") == tab.text("#crowd-text") != ""

    tab.wait("document.querySelectorAll('#receipts-table .tag').length === 2")
    mine = "[...document.querySelectorAll('#receipts-table tbody tr')].find(row => row.querySelector('.tag'))"
    tab.run(f"{mine}.querySelector('button').click()")
    tab.wait(f"{mine}.querySelector('.said').dataset.state === 'same'")
    assert "✓ same" in tab.text("#receipts-table")
    tab.screenshot(pictures / "same.png", whole=True)
    tab.media(prefers_color_scheme="dark")
    tab.screenshot(pictures / "dark.png", whole=True)
    clean(tab, server.url)
    assert tab.run("document.cookie") == "" and tab.run("sessionStorage.length") == 0


def test_sampled_answers_are_the_same_too(server: ServerProcess, tab: Tab) -> None:
    tab.open(server.url)
    tab.wait(LIVE)
    choose(tab, "sampling", "1")
    choose(tab, "tokens", "96")
    click(tab, "#go")
    state, words = verdict(tab)
    assert state == "same", words
    clean(tab, server.url)


def test_with_the_keyboard_alone(server: ServerProcess, tab: Tab) -> None:
    """From the first Tab to a replayed receipt; what has the focus can be seen."""
    tab.open(server.url)
    tab.wait(LIVE)
    found = "document.activeElement.id || document.activeElement.className"
    order = []
    for _ in range(30):
        tab.press("Tab")
        order.append(tab.run(found))
        assert tab.run("getComputedStyle(document.activeElement).outlineStyle") != "none" or order[-1].startswith(
            "class-"  # its label shows it
        )
        if order[-1] == "go":
            break
    wanted = ["skip", "theme", "class-portable", "question", "ask-class", "crowd", "tokens", "sampling", "go"]
    assert [name for name in order if name in wanted] == wanted, order

    tab.run("document.querySelector('#class-portable').focus()")
    tab.press("ArrowRight")  # around to the first that is on offer
    assert tab.run("document.querySelector('#ask-class').value") == "best-effort"
    assert "may change the answer" in tab.text("#axes")
    tab.press("ArrowLeft")
    assert tab.run("document.querySelector('#ask-class').value") == "portable"

    tab.run("document.querySelector('#question').focus()")
    tab.run("document.querySelector('#question').value = ''")
    tab.type("Name a river.")
    tab.press("Enter", control=True)
    state, words = verdict(tab)
    assert state in ("same", "unknown"), words  # a short answer may have ended before a neighbour was seen
    tab.wait("document.querySelector('#receipts-table button')")
    tab.run("document.querySelector('#receipts-table button').focus()")
    handle = tab.run("document.activeElement.dataset.handle")
    tab.press(" ")
    said = f"document.querySelector('button[data-handle=\"{handle}\"]').parentElement.querySelector('.said')"
    tab.wait(f"{said}.dataset.state === 'same'")
    tab.run("document.querySelector('#pause').focus()")
    tab.press("Enter")
    assert tab.run("document.querySelector('#pause').getAttribute('aria-pressed')") == "true"
    clean(tab, server.url)


def test_on_a_phone(server: ServerProcess, tab: Tab, pictures: Path) -> None:
    tab.size(360, 740, 2, phone=True)
    tab.open(server.url)
    tab.wait(LIVE)
    choose(tab, "crowd", "4")
    click(tab, "#go")
    verdict(tab)
    assert tab.run("document.documentElement.scrollWidth") <= 360
    small = (
        "[...document.querySelectorAll('button, select, textarea, summary, .tab')].filter(node => node.offsetParent)"
        ".filter(node => node.getBoundingClientRect().height < 32).map(node => node.outerHTML)"
    )
    assert tab.run(small) == [], "large enough for a thumb"
    wide = (
        "[...document.querySelectorAll('main *')].filter(node => !node.closest('details'))"
        ".filter(node => node.getBoundingClientRect().right > innerWidth + 1).map(node => node.outerHTML)"
    )
    assert tab.run(wide) == []
    tab.screenshot(pictures / "phone.png", whole=True)
    clean(tab, server.url)


def test_everything_has_a_name_and_can_be_read(server: ServerProcess, tab: Tab) -> None:
    """Names for those who hear the page, and contrast in both themes (WCAG: 4.5 to 1)."""
    tab.open(server.url)
    tab.wait(LIVE)
    tree = tab.send("Accessibility.getFullAXTree")["nodes"]
    roles = ("button", "textbox", "combobox", "radio", "image", "table", "link")
    unnamed = [
        node["role"]["value"]
        for node in tree
        if not node["ignored"] and node["role"]["value"] in roles and not node.get("name", {}).get("value")
    ]
    assert [role for role in unnamed if role != "table"] == []
    for scheme in ("light", "dark"):
        tab.media(prefers_color_scheme=scheme)
        for pair in (
            ("ink", "page"),
            ("ink", "card"),
            ("muted", "page"),
            ("muted", "card"),
            ("on-accent", "accent"),
            ("accent", "soft"),
            ("same", "same-soft"),
            ("same", "card"),
            ("different", "different-soft"),
            ("unknown", "unknown-soft"),
            ("unknown", "card"),
        ):
            ink, ground = (colour(tab, name) for name in pair)
            assert contrast(ink, ground) >= 4.5, (scheme, pair, contrast(ink, ground))


def colour(tab: Tab, name: str) -> str:
    return str(tab.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()"))


def contrast(a: str, b: str) -> float:
    """Of two colours #rrggbb, by the formula of WCAG 2."""

    def luminance(code: str) -> float:
        parts = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


MODULES = """
(async () => {
  const { compare, split, labelOf, bitsOf, distance } = await import("/page/compare.js");
  const answer = (ids, logprobs, digest = null) =>
    ({ ids, logprobs, bytes: ids.map((id) => [...new TextEncoder().encode("é" + id)]), digest });
  const a = answer([1, 2, 3], [-0.5, -0.25, -1]);
  const half = { ids: [7, 8], logprobs: [0, 0], bytes: [[0xe2, 0x82], [0xac, 0x21]] };
  return {
    same: compare(a, answer([1, 2, 3], [-0.5, -0.25, -1])),
    token: compare(a, answer([1, 9, 3], [-0.5, -0.25, -1])),
    logprob: compare(a, answer([1, 2, 3], [-0.5, -0.25, -1.0000000000000002])),
    before: compare(a, answer([1, 2, 4], [-0.5, -0.2, -1])),
    shorter: compare(a, answer([1, 2], [-0.5, -0.25])),
    empty: compare(answer([], []), a),
    digest: compare(answer([1], [0], "aa"), answer([1], [0], "bb")),
    one: compare(answer([1], [0], "aa"), answer([1], [0])),
    zero: compare(answer([1], [0]), answer([1], [-0])),
    nan: compare(answer([1], [NaN]), answer([1], [NaN])),
    bits: bitsOf(-0.5),
    parts: split(a, 1),
    half: split(half, 1),
    label: ["", "a", "foobar", "chatcmpl-é"].map(labelOf),
    distance: distance(a, answer([1, 2, 4], [-0.5, -0.5, -1])),
  };
})()
"""


def test_the_comparison_is_to_the_bit(server: ServerProcess, tab: Tab) -> None:
    tab.open(server.url)
    found: dict[str, Any] = tab.run(MODULES)
    assert found["same"] == found["one"] == found["nan"] == {"same": True, "position": None, "what": None}
    assert found["token"] == {"same": False, "position": 1, "what": "token"}
    assert found["logprob"] == {"same": False, "position": 2, "what": "logprob"}
    assert found["before"] == {"same": False, "position": 1, "what": "logprob"}
    assert found["shorter"] == {"same": False, "position": 2, "what": "length"}
    assert found["empty"] == {"same": False, "position": 0, "what": "length"}
    assert found["digest"] == {"same": False, "position": None, "what": "digest"}
    assert found["zero"] == {"same": False, "position": 0, "what": "logprob"}
    assert found["bits"] == "bfe0000000000000"
    assert found["parts"] == ["é1", "é2", "é3"]
    assert found["half"] == ["\ufffd", "\ufffd!", ""]
    assert found["label"] == [label_of(text) for text in ("", "a", "foobar", "chatcmpl-é")]
    assert found["distance"] == {"agreed": 2, "apart": 1, "gap": 0.25}


TEXT = b"Sunlight is a mix of many colours, and each of them is light of another wavelength. "


def engines() -> tuple[FakeEngine, FakeEngine]:
    """One that keeps its promise, and one whose answer tells whether it was alone."""
    sound = FakeEngine(step=0.02, script=lambda *_: TEXT * 4, max_model_len=4096, max_num_seqs=32)
    loose = FakeEngine("vendor", step=0.02, max_model_len=4096, max_num_seqs=32)
    loose.script = lambda *_: TEXT.replace(b"many", b"some" if len(loose.active) > 1 else b"many") * 4
    return sound, loose


def test_a_difference_is_shown_where_it_begins(tab: Tab, pictures: Path) -> None:
    sound, loose = engines()
    with live(sound, loose, extensions=[PageExtension([sound, loose])]) as server:
        tab.open(server.url)
        tab.wait(LIVE)
        choose(tab, "ask-class", "best-effort")
        assert tab.run("document.querySelector('#class-best-effort').checked")
        assert "nothing promised" in tab.text("#headline")
        click(tab, "#go")
        state, words = verdict(tab)
        assert state == "different" and "Different from token 22 on" in words, words
        assert '"m" (109) became "s" (115)' in words and "promises nothing" in words
        assert tab.run("[...document.querySelectorAll('mark')].map(mark => mark.textContent)") == ["m", "s"]
        assert tab.text("#crowd-text").startswith("Sunlight is a mix of some colours")
        tab.screenshot(pictures / "different.png", whole=True)
        choose(tab, "ask-class", "portable")
        click(tab, "#go")
        tab.wait("document.querySelector('#verdict').hidden")
        state, words = verdict(tab)
        assert state == "same" and "digests" not in words
        assert "makes no receipts" in tab.text("#receipts")
        assert tab.errors == []


def test_receipts_that_cannot_be_read_are_said_to_be(tab: Tab) -> None:
    sound, _ = engines()
    with live(sound, receipts=NumberedReceipts(), extensions=[PageExtension([sound])]) as server:
        tab.open(server.url)
        tab.wait(LIVE)
        click(tab, "#go")
        state, words = verdict(tab)
        assert state == "same" and "A receipt could not be read" in words and "digests" not in words
        assert "could not be read" in tab.text("#receipts-message")


def test_who_was_not_seen_in_a_batch_proves_nothing(tab: Tab) -> None:
    sound, _ = engines()
    sound.max_num_seqs = 1

    class Blind(PageExtension):
        """It never looks at the batch while anybody is in it."""

        def tokens(self, *_: Any) -> None:
            pass

    page = Blind([sound])
    page.timeline.sample = lambda now: None  # type: ignore[method-assign]
    with live(sound, extensions=[page]) as server:
        tab.open(server.url)
        tab.wait(LIVE)
        choose(tab, "tokens", "24")
        click(tab, "#go")
        state, words = verdict(tab)
        assert state == "unknown" and "Inconclusive" in words and "put to the test" in words


def test_text_is_text(tab: Tab) -> None:
    """Whatever a model, a user or an error says."""
    evil = b"<img src=x onerror=alert(1)><script>document.title='owned'</script>"
    engine = FakeEngine(script=lambda *_: evil, max_model_len=4096, step=0.005)
    name = "<b>model</b>"
    with live(engine, extensions=[PageExtension([engine])], model_names=(name,)) as server:
        tab.open(server.url)
        tab.wait(LIVE)
        choose(tab, "tokens", "192")
        click(tab, "#go")
        tab.wait("document.querySelector('#alone-text').textContent.includes('</script>')")
        assert tab.text("#model") == name
        assert tab.run("document.querySelectorAll('main img, main script, main b').length") == 0
        assert tab.run("document.title").startswith(name)
        verdict(tab)
        clean(tab, server.url)


def test_with_a_key(tab: Tab) -> None:
    sound, _ = engines()
    with live(sound, extensions=[PageExtension([sound])], api_keys=(KEY,)) as server:
        tab.open(server.url)
        tab.wait("document.querySelector('#status').dataset.state === 'key'")
        assert tab.run("document.activeElement.id") == "key"
        tab.type("wrong")
        tab.press("Enter")
        tab.wait("document.querySelector('#key-message').textContent.includes('does not know')")
        tab.type(KEY)
        tab.press("Enter")
        tab.wait(LIVE)
        choose(tab, "tokens", "24")
        click(tab, "#go")
        assert verdict(tab)[0] == "same"
        assert not any(KEY in url for url in tab.requests)
        assert tab.run("document.cookie + JSON.stringify({...localStorage})") == "{}"
        assert all("401" in error for error in tab.errors)
        tab.run("document.querySelector('#key-button').click()")
        tab.wait("document.querySelector('#status')?.dataset.state === 'key'")
        assert tab.run("sessionStorage.length") == 0


def test_a_server_that_goes_and_comes_back(tab: Tab) -> None:
    sound, _ = engines()
    with live(sound, extensions=[PageExtension([sound])]) as server:
        tab.open(server.url)
        tab.wait(LIVE)
        port = server.port
    tab.wait("document.querySelector('#status').dataset.state === 'lost'")
    assert "trying again" in tab.text("#status")
    with live(sound, extensions=[PageExtension([sound])], port=port):
        tab.wait(LIVE)


def test_a_theme_of_ones_own(server: ServerProcess, tab: Tab) -> None:
    tab.open(server.url)
    tab.wait(LIVE)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = tab.run(ground)
    click(tab, "#theme")
    assert tab.text("#theme") == "Theme: light" and tab.run(ground) == light
    click(tab, "#theme")
    assert tab.text("#theme") == "Theme: dark" and tab.run(ground) != light
    tab.open(server.url)
    assert tab.text("#theme") == "Theme: dark"
    clean(tab, server.url)


def test_the_page_is_there_while_nothing_can_be_read(tab: Tab) -> None:
    """Files without a server that tells anything: words, not an empty page."""
    engine = FakeEngine()
    with live(engine, extensions=[PageExtension([engine])]) as server:
        assert httpx.get(server.url).status_code == 200
        tab.send("Network.setBlockedURLs", urls=["*/live/*"])
        tab.open(server.url)
        tab.wait("document.querySelector('#status').dataset.state === 'lost'")
        assert "could not be read" in tab.text("#lead")
        assert "Loading" in tab.text("#receipts-message")
