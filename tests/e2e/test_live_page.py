"""The live page in a real browser, in front of a real server with a tiny model."""

import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.loopback import serving, tiny_llm
from tests.unchecked import unchecked

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or importlib.util.find_spec("playwright") is None,
    reason="needs Chromium and Playwright",
)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose drafter is right often and wrong sometimes."""
    with unchecked(), serving(tiny_llm(tmp_path_factory.mktemp("live"))) as running:
        yield running.url


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass(slots=True)
class Watched:
    """A page, and whatever it should not have done."""

    page: "Page"
    url: str
    faults: list[str] = field(default_factory=list)

    def text(self, selector: str) -> str:
        return self.page.locator(selector).first.inner_text()

    def wait_for(self, selector: str, pattern: str) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator(selector).first).to_have_text(re.compile(pattern), timeout=15000)

    def send(self, text: str) -> None:
        self.page.locator("#message").fill(text)
        self.page.keyboard.press("Enter")
        self.wait_for("#status", "Answer complete")


@pytest.fixture
def opened(browser: "Browser", url: str) -> Iterator["Opener"]:
    opener = Opener(browser, url)
    yield opener
    for each in opener.opened:
        each.page.context.close()
        assert each.faults == []


@dataclass(slots=True)
class Opener:
    """Opens pages that note errors and requests to other hosts."""

    browser: "Browser"
    url: str
    opened: list[Watched] = field(default_factory=list)

    def __call__(
        self, width: int = 1280, *, url: str = "", about: str = "drafter suffix", **options: Any
    ) -> Watched:
        context = self.browser.new_context(viewport={"width": width, "height": 800}, **options)
        page = context.new_page()
        watched = Watched(page, url or self.url)
        page.on("pageerror", lambda error: watched.faults.append(f"error: {error}"))
        page.on("console", lambda said: watched.faults.append(f"{said.type}: {said.text}"))
        page.on("request", lambda asked: self._check(asked.url, watched))
        page.goto(watched.url)
        watched.wait_for("#about", about)
        page.locator("#max-tokens").evaluate("field => { field.value = 48; }")
        self.opened.append(watched)
        return watched

    def _check(self, asked: str, watched: Watched) -> None:
        if not asked.startswith((watched.url, "data:")):
            watched.faults.append(f"request to {asked}")


def test_a_message_gets_coloured_tokens_and_moves_the_plots(opened: Opener) -> None:
    """Catches origins that do not arrive, and plots that stay empty while the server works."""
    shown = opened()
    shown.send("hello hello hello")
    page = shown.page
    assert page.locator(".log .token.accepted[title*='suffix']").count() > 0
    others = page.locator(".log .token.recovered, .log .token.bonus")
    assert others.count() > 0
    colours = {
        kind: page.locator(f".legend .{kind}").evaluate(
            "e => getComputedStyle(e).backgroundColor + getComputedStyle(e).textDecorationStyle"
        )
        for kind in ("accepted", "recovered", "bonus")
    }
    assert len(set(colours.values())) == 3
    shown.wait_for("#plot-speed-says", r"at most \d+")
    shown.wait_for("#plot-length-says", r"tokens per round, at most \d")
    shown.wait_for("#plot-rates-says", "first draft token is kept")
    shown.wait_for("#plot-verify-says", r"mean by requests in the step: 1: \d")
    shown.wait_for("#plot-cost-says", r"lately \S+ rows in")
    assert page.locator("#plot-rates rect").count() >= 2
    assert page.locator("#plot-cost circle.now").count() == 1


def test_speculation_is_switched_off_and_both_are_compared(opened: Opener) -> None:
    """Catches a switch that switches nothing, and answers that differ without anyone noticing."""
    shown = opened()
    shown.page.locator("#speculate").uncheck()
    shown.send("bbbb bbbb")
    assert shown.page.locator(".log .token[data-origin]").count() == 0
    assert shown.text("#speed-plain td") != "–"
    assert shown.text("#speed-speculative td") == "–"
    shown.page.locator("#message").fill("cccc cccc")
    shown.page.locator("#both").click()
    shown.wait_for("#speedup", r"Speculative is [\d.]+ times as fast as plain.*identical")
    plain, speculative = shown.page.locator(".pair .text").all_inner_texts()
    assert plain == speculative
    assert shown.text("#speed-speculative td") != "–"


def test_a_phone_is_wide_enough(opened: Opener) -> None:
    """Catches a page that scrolls sideways, or a control too small for a finger."""
    shown = opened(360, color_scheme="dark", has_touch=True)
    shown.send("dddd dddd")
    width = shown.page.locator("html").evaluate("root => root.scrollWidth")
    assert width <= 360
    for name in ("#send", "#both", "#stop", "#clear"):
        box = shown.page.locator(name).bounding_box()
        assert box is not None
        assert box["height"] >= 40


def test_light_and_dark_can_be_read(opened: Opener) -> None:
    """Catches a colour scheme that is ignored, and text too faint (WCAG 2, 4.5 to 1)."""
    pages = {}
    for scheme in ("light", "dark"):
        shown = opened(color_scheme=scheme)
        pages[scheme] = shown.page.locator("section").first.evaluate(
            "e => getComputedStyle(e).backgroundColor"
        )
        for selector in (
            "section h2",
            ".legend .accepted",
            ".legend .recovered",
            ".legend .bonus",
            "#hint",
            "#send",
        ):
            assert contrast(shown.page, selector) >= 4.5, (scheme, selector)
    assert pages["light"] != pages["dark"]


def contrast(page: "Page", selector: str) -> float:
    """Contrast of an element's text with the first background behind it."""
    ink, ground = page.locator(selector).first.evaluate(
        """element => {
            const ink = getComputedStyle(element).color;
            let behind = element;
            while (getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)")
                behind = behind.parentElement;
            return [ink, getComputedStyle(behind).backgroundColor];
        }"""
    )
    lighter, darker = sorted((luminance(ink), luminance(ground)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(…)` (WCAG 2)."""
    parts = [int(each) / 255 for each in re.findall(r"\d+", colour)[:3]]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_keyboard_is_enough(opened: Opener) -> None:
    """Catches a control that cannot be reached or told by its name, and a lost focus."""
    shown = opened()
    page = shown.page
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # The skip link.
    page.keyboard.type("eeee eeee")
    names = []
    for _ in range(3):
        page.keyboard.press("Tab")
        names.append(
            page.locator(":focus").evaluate("e => e.labels?.[0]?.innerText ?? e.innerText")
        )
    assert [name.strip() for name in names] == ["Speculation", "Send", "Run both"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Space")
    assert not page.locator("#speculate").is_checked()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    shown.wait_for("#status", "Answer complete")
    assert page.locator(":focus").get_attribute("id") == "message"
    for role, name in (("switch", "Speculation"), ("textbox", "Message"), ("log", "Conversation")):
        assert page.get_by_role(role, name=name).count() == 1  # type: ignore[arg-type]
    assert page.get_by_role("img").count() == 5


def test_a_refusal_is_said_and_the_message_kept(opened: Opener) -> None:
    """Catches an error that only the console knows, or a message that has to be typed again."""
    shown = opened()
    shown.page.locator("#temperature").evaluate("field => { field.value = -1; }")
    shown.page.locator("#message").fill("ffff")
    shown.page.keyboard.press("Enter")
    shown.wait_for("#problem", "temperature")
    assert shown.page.locator("#message").input_value() == "ffff"
    # The browser itself reports an answer of 400.
    shown.faults[:] = [fault for fault in shown.faults if "status of 400" not in fault]


def test_an_answer_is_stopped_by_escape(opened: Opener) -> None:
    """Catches a page that waits for ever for a server that hangs."""
    shown = opened()
    shown.page.route("**/v1/chat/completions", lambda _route: None)
    shown.page.locator("#message").fill("gggg")
    shown.page.keyboard.press("Enter")
    assert shown.page.locator("#send").is_disabled()
    shown.page.keyboard.press("Escape")
    shown.wait_for("#status", "Stopped")
    assert shown.page.locator("#send").is_enabled()
    assert shown.text("#problem") == ""


def test_text_of_the_model_is_text(opened: Opener) -> None:
    """Catches an answer or a message that becomes part of the page."""
    shown = opened()
    evil = "<img src=x onerror=alert(1)><b>bold</b>"
    body = "".join(
        f"data: {json.dumps(fields)}\n\n"
        for fields in (
            {"choices": [{"delta": {"content": evil}, "finish_reason": "stop"}]},
            {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 9}},
        )
    )
    shown.page.route("**/v1/chat/completions", lambda route: route.fulfill(body=body))
    shown.send(evil)
    assert shown.page.locator(".log .text").all_inner_texts() == [evil, evil]
    assert shown.page.locator(".log img, .log b").count() == 0


def test_plots_are_tables_too(opened: Opener) -> None:
    """Catches a plot that only eyes can read."""
    shown = opened()
    shown.send("hello hello hello")
    for name in ("speed", "length", "rates", "verify", "cost"):
        shown.page.locator(f"#plot-{name} summary").click()
        shown.wait_for(f"#plot-{name} tbody td", r"\d")


def test_a_key_is_asked_for_and_used(opened: Opener, tmp_path: Path) -> None:
    """Catches a page that is useless in front of a server with a key, or that tells it nobody."""
    with unchecked(), serving(tiny_llm(tmp_path), api_key="sk-page") as locked:
        shown = opened(url=locked.url, about="connecting")
        shown.wait_for("#problem", "wants an API key")
        shown.page.locator(".options summary").click()
        shown.page.locator("#key").fill("sk-page")
        shown.wait_for("#about", "drafter suffix")
        shown.send("hhhh")
        shown.faults[:] = [fault for fault in shown.faults if "status of 401" not in fault]
        shown.page.context.close()


def test_what_is_not_a_file_of_the_page_is_not_given(url: str) -> None:
    """Catches a path that leads out of the page's folder, or a page without its policy."""
    import httpx

    for name in ("../live.py", "%2e%2e/live.py", "..%2flive.py", "none.js"):
        assert httpx.get(f"{url}/web/{name}").status_code == 404
    page = httpx.get(url)
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert Path(__file__).name not in page.text
