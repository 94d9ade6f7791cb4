"""The driver of the browser: it waits for what comes late, and reports what does not come."""

from pathlib import Path

import pytest
from tests import browser as module
from tests.browser import Browser, BrowserError

PAGE = """<!doctype html><title>t</title><p id="late">no</p><p id="width"></p>
<script>
  setTimeout(() => { late.textContent = "yes"; }, 300);
  new ResizeObserver(() => requestAnimationFrame(() => { width.textContent = innerWidth; })).observe(document.body);
</script>"""


@pytest.fixture
def page(tmp_path: Path, browser: Browser) -> Browser:
    (tmp_path / "page.html").write_text(PAGE)
    browser.open((tmp_path / "page.html").as_uri(), width=700)
    return browser


def test_what_comes_late_is_waited_for(page: Browser):
    assert page.wait(lambda: page.run("return late.textContent === 'yes' && 'found'")) == "found"


def test_a_document_at_rest_has_drawn_its_frames(page: Browser):
    assert '<p id="width">700</p>' in page.settled_html()


def test_what_does_not_come_is_an_error_that_shows_the_page(page: Browser, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.2)
    with pytest.raises(BrowserError, match=r"an answer did not hold within 0 seconds.*<title>t</title>"):
        page.wait(lambda: page.run("return document.title === 'other'"), "an answer")


def test_an_error_of_a_script_is_reported(page: Browser):
    with pytest.raises(BrowserError, match="missing is not defined"):
        page.run("return missing.length")
