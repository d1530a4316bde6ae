"""The page in a real Chromium: offline, without script, dark, printed, narrow, and open to a screen reader."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autoopt.records import Profile, Result
from autoopt_reports import html

NAMES = ["win", "no_gain", "out_of_memory", "interrupted", "hostile", "thousand"]
Pages = dict[str, str]


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory, golden: Callable[[str], Result], golden_profile: Profile) -> Pages:
    folder = tmp_path_factory.mktemp("pages")
    written = {name: html.write_text(html.render(golden(name)), folder / f"{name}.html").as_uri() for name in NAMES}
    return {**written, "profile": html.write_text(html.render(golden_profile), folder / "profile.html").as_uri()}


@contextmanager
def screen(browser: Any, width: int, height: int, **media: str) -> Iterator[None]:
    features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items() if name != "media"]
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media.get("media", ""), "features": features})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})


def requests_of(browser: Any) -> list[str]:
    """Addresses that were asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("name", [*NAMES, "profile"])
def test_no_request_no_error_no_injection(browser: Any, pages: Pages, name: str) -> None:
    requests_of(browser)
    browser.get_log("browser")
    browser.get(pages[name])
    own = ("data:", "chrome:")  # the browser's first tab may still be loading
    asked = [url for url in requests_of(browser) if not url.startswith(own)]
    assert asked == [pages[name]]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    assert browser.get_log("browser") == [], "a policy violation or a script error is logged here"
    assert browser.execute_script("return document.scripts.length") == 1
    assert browser.execute_script("return document.querySelectorAll('img,iframe,object,embed,form').length") == 0


def test_first_screen_answers_the_four_questions(browser: Any, pages: Pages) -> None:
    """How much faster, how sure, is it safe, what next: all within 1280×800."""
    with screen(browser, 1280, 800):
        browser.get(pages["win"])
        bottom = "return document.querySelector(arguments[0]).getBoundingClientRect().bottom"
        for part in ("h1", ".qualifiers", ".facts", ".next", "#trust"):
            assert browser.execute_script(bottom, part) <= 800, part
        seen = browser.find_element("id", "verdict").text
        for words in ("2.31× faster to target", "95 % CI 2.24–2.39×", "same quality", "autoopt train"):
            assert words in seen


def test_without_script_everything_is_readable_and_the_tabs_work(browser: Any, pages: Pages) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(pages["win"])
        body = browser.find_element("tag name", "body").text
        assert "2.31× faster to target" in body
        assert "loader = DataLoader" in body
        assert "out of memory: tried to allocate" in body
        assert "Copy" not in body, "buttons that need script are not shown without it"
        browser.find_element("css selector", "label[for=fw-transformers]").click()
        after = browser.find_element("id", "adopt").text
        assert "TrainingArguments(" in after
        assert "loader = DataLoader" not in after
        browser.find_element("css selector", "#waterfall details.data summary").click()
        assert "interaction and re-measurement" in browser.find_element("css selector", "#waterfall table").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_sort_theme_and_copy(browser: Any, pages: Pages) -> None:
    browser.get(pages["win"])
    column = "return [...document.querySelectorAll('.g-kept tbody tr')].map((r) => Number(r.cells[4].dataset.v))"
    head = browser.find_elements("css selector", ".g-kept th .sort")[4]
    head.click()
    rising = browser.execute_script(column)
    assert rising == sorted(rising)
    head.click()
    assert browser.execute_script(column) == rising[::-1]
    assert browser.execute_script("return document.querySelector('.g-kept [aria-sort]').ariaSort") == "descending"
    paper = "return getComputedStyle(document.documentElement).backgroundColor"
    before = browser.execute_script(paper)
    browser.find_element("id", "theme").click()
    assert browser.execute_script(paper) != before
    browser.find_element("id", "theme").click()
    browser.execute_script(
        "window.taken = ''; document.execCommand = () => { window.taken = document.activeElement.value; return true }"
    )
    browser.execute_script("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    button = browser.find_element("css selector", ".command .copy")
    button.click()
    assert (
        browser.execute_script("return window.taken")
        == "autoopt train synthetic.photos:build --plan autoopt-runs/synthetic-1/plan.json"
    )
    assert button.text == "Copied"


@pytest.mark.parametrize("name", [*NAMES, "profile"])
def test_390_pixels_need_no_sideways_scroll(browser: Any, pages: Pages, name: str) -> None:
    with screen(browser, 390, 844):
        browser.get(pages[name])
        if name != "thousand":  # opening a thousand rows adds nothing but time
            browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        sizes = "return [...document.querySelectorAll('svg text')].map((t) => parseFloat(getComputedStyle(t).fontSize))"
        assert min(browser.execute_script(sizes)) >= 11


@pytest.mark.parametrize("name", ["win", "hostile", "interrupted"])
def test_printed_it_is_a_document(browser: Any, pages: Pages, name: str) -> None:
    browser.get(pages[name])
    printed = browser.execute_cdp_cmd(
        "Page.printToPDF", {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
    )
    data = base64.b64decode(printed["data"])
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= 3
    with screen(browser, 718, 1000, media="print", prefers_color_scheme="dark"):
        paper = browser.execute_script("return getComputedStyle(document.documentElement).backgroundColor")
        assert paper == "rgb(255, 255, 255)", "ink is not wasted on a dark page"
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 718
        assert not browser.find_element("css selector", "nav").is_displayed()


@pytest.fixture(scope="session")
def axe() -> str:
    package = pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")
    return (Path(package.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [("win", "light", 1280), ("win", "dark", 390), ("interrupted", "dark", 390), ("hostile", "light", 1280),
     ("profile", "dark", 390)],
)  # fmt: skip
def test_axe_finds_nothing_serious(browser: Any, pages: Pages, axe: str, name: str, scheme: str, width: int) -> None:
    with screen(browser, width, 900, prefers_color_scheme=scheme):
        browser.get(pages[name])
        browser.execute_script("for (const d of document.querySelectorAll('details')) d.open = true")
        browser.execute_script(axe)
        found = browser.execute_async_script(
            "const done = arguments[arguments.length - 1]; axe.run(document, {resultTypes: ['violations']}).then(done)"
        )
    serious = [
        (v["id"], v["impact"], [n["html"][:200] for n in v["nodes"][:3]])
        for v in found["violations"]
        if v["impact"] in {"serious", "critical"}
    ]
    assert not serious
    assert len(found["violations"]) <= 1, [v["id"] for v in found["violations"]]
