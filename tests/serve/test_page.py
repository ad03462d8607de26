"""The page: its files, and, if there is a Chromium, its behavior."""

import re
from html.parser import HTMLParser
from pathlib import Path

import chromium
import pytest

import s2sft_fairseq
from s2sft_fairseq.serve.settings import Access

STATIC = Path(s2sft_fairseq.__file__).parent / "serve" / "static"
FOCUS = "document.activeElement"


class Elements(HTMLParser):
    """The elements of a page, with their attributes."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))


@pytest.fixture(scope="module")
def elements():
    return Elements((STATIC / "index.html").read_text()).found


def test_every_input_has_a_label(elements):
    labelled = {attributes.get("for") for tag, attributes in elements if tag == "label"}
    inputs = {attributes.get("id") for tag, attributes in elements if tag in ("input", "textarea", "select")}
    assert inputs == labelled
    assert len(inputs) == 7


def test_names_of_the_options_are_those_of_requests(elements):
    schemas = pytest.importorskip("s2sft_fairseq.serve.schemas", reason="the extra serve is not installed")
    names = {attributes["name"] for tag, attributes in elements if tag == "input" and "name" in attributes}
    assert names == set(schemas.GenerateRequest.model_fields) - {"source"}


def test_options_are_empty_until_the_user_sets_them(elements):
    """An empty option is that of the model's folder, as in Python."""
    assert not [attributes for tag, attributes in elements if tag == "input" and "value" in attributes]
    assert "placeholder" in (STATIC / "page.js").read_text()


def test_no_inline_code_and_no_external_resources(elements):
    for tag, attributes in elements:
        assert not [name for name in attributes if name == "style" or name.startswith("on")], (tag, attributes)
        assert tag != "style"
        assert tag != "script" or attributes.get("src") == "page.js"
    for path in STATIC.iterdir():
        assert not re.search(r"https?://|//\w+\.\w|@import|\burl\(", path.read_text()), path
    script = (STATIC / "page.js").read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", script)


def test_ids_are_unique_and_match_the_script(elements):
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    asked = set(re.findall(r'byId\("([\w-]+)"\)', (STATIC / "page.js").read_text()))
    assert asked and asked <= set(ids)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    if not chromium.find():
        pytest.skip("no chromium")
    opened = chromium.Browser(tmp_path_factory.mktemp("chromium"))
    yield opened
    opened.close()


@pytest.fixture
def opened(browser, serve):
    """A function that opens the page of a server."""

    def open_page(served):
        browser.messages.clear()
        browser.requests.clear()
        browser.open(f"http://127.0.0.1:{served.port}/")
        return browser

    return open_page


@pytest.mark.process
def test_with_the_keyboard_alone(opened, serve):
    served = serve()
    page = opened(served)
    order = []
    while not order or order[-1] != "generate":
        page.press("Tab")
        order.append(page.evaluate(f"{FOCUS}.id"))
    assert order == ["source", "beam", "num_return", "max_len", "length_penalty", "no_repeat_ngram", "generate"]
    page.evaluate("document.getElementById('source').focus()")
    page.type("<b>text</b>")
    page.press("Enter", ctrl=True)
    page.wait_until("document.querySelectorAll('#results li').length == 1")
    assert served.model.batches == [(["<b>text</b>"], {})]
    assert page.evaluate("document.getElementById('beam').placeholder") == "3"
    assert page.evaluate("document.querySelector('#results .text').textContent") == "<b>text</b>"[::-1]
    assert page.evaluate("document.getElementById('status').textContent").startswith("1 text in ")
    page.evaluate("document.getElementById('generate').focus()")
    page.press("Tab")
    assert page.evaluate(f"{FOCUS}.getAttribute('aria-label')") == ">, probability 90 %"
    page.press("ArrowRight")
    page.press("ArrowRight")
    assert page.evaluate(f"{FOCUS}.textContent") == "/"
    page.press("Enter")
    page.wait_until("!document.getElementById('attention').hidden")
    assert page.evaluate(f"{FOCUS}.getAttribute('aria-pressed')") == "true"
    assert page.evaluate("document.querySelectorAll('#attention-tokens .token').length") == len("<b>text</b>")
    assert page.evaluate("document.getElementById('attention-summary').textContent").startswith(
        "/ looks most at < (9.1 %)"
    )
    page.press("End")
    assert page.evaluate(f"{FOCUS}.textContent") == "<"
    assert page.messages == []
    assert {url.rpartition("/")[0] for url in page.requests} == {f"http://127.0.0.1:{served.port}"}


@pytest.mark.process
def test_likely_tokens_have_another_colour(opened, serve):
    page = opened(serve())
    colours = page.evaluate(
        "[...document.querySelectorAll('#legend .token')].map((each) => getComputedStyle(each).backgroundColor)"
    )
    assert len(set(colours)) == 2 and "rgba(0, 0, 0, 0)" not in colours


@pytest.mark.process
def test_an_error_is_shown(opened, serve):
    page = opened(serve())
    page.evaluate("document.getElementById('source').value = 'wrong'")
    page.evaluate("document.getElementById('generate').click()")
    page.wait_until("document.getElementById('status').classList.contains('error')")
    assert page.evaluate("document.getElementById('status').textContent") == "Error: the source is wrong"
    assert not page.evaluate("document.getElementById('generate').disabled")


@pytest.mark.process
def test_the_key_is_asked_for(opened, serve):
    page = opened(serve(access=Access.of("0.0.0.0", "0123456789abcdef")))
    page.evaluate("document.getElementById('source').value = 'ab'")
    page.evaluate("document.getElementById('generate').click()")
    page.wait_until(f"{FOCUS}.id == 'key'")
    page.type("0123456789abcdef")
    page.press("Enter")
    page.wait_until("document.querySelectorAll('#results li').length == 1")


@pytest.mark.process
def test_on_a_narrow_screen(opened, serve):
    page = opened(serve())
    page.resize(320, 640)
    page.evaluate("document.getElementById('source').value = 'x'.repeat(300)")
    page.evaluate("document.getElementById('generate').click()")
    page.wait_until("document.querySelectorAll('#results li').length == 1")
    page.evaluate("document.querySelector('#results .token').click()")
    page.wait_until("!document.getElementById('attention').hidden")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    page.resize(1000, 800)
