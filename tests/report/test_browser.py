"""The report in a real browser: wide and narrow, light and dark, on screen and printed."""

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.report.browser import CHROMIUM, Browser, keep

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed"),
]
T = TypeVar("T")
SIZES = {  # width, and whether it is dark
    "desktop": (1200, False),
    "tablet": (800, True),
    "phone": (375, False),
    "dark phone": (375, True),
    "small": (320, False),
}
OVERLAPS = """
(() => {
  const found = [];
  for (const svg of document.querySelectorAll("svg")) {
    const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
    for (const [place, [one, a]] of boxes.entries())
      for (const [other, b] of boxes.slice(place + 1)) {
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 3) found.push(`${one} / ${other}`);
      }
  }
  return found;
})()
"""
OUTSIDE = """
(() => {
  const found = [];
  for (const text of document.querySelectorAll("svg text")) {
    const box = text.getBoundingClientRect();
    const frame = text.closest("svg").getBoundingClientRect();
    if (box.left < frame.left - 3 || box.right > frame.right + 3) found.push(text.textContent);
  }
  return found;
})()
"""


def in_browser(tmp_path: Path, act: Callable[[Browser], Awaitable[T]]) -> T:
    """Run `act` with a browser, which must report no error and send no request to a server."""

    async def run() -> T:
        async with Browser(tmp_path / "profile") as browser:
            found = await act(browser)
            assert browser.errors == []
            assert all(url.startswith(("file://", "data:")) for url in browser.requests), browser.requests
            return found

    return asyncio.run(run())


@pytest.mark.parametrize("size", SIZES)
def test_every_figure_is_visible_and_no_text_overlaps(page: Path, tmp_path: Path, size: str) -> None:
    width, dark = SIZES[size]

    async def act(browser: Browser) -> dict[str, Any]:
        await browser.open(page, width=width, dark=dark)
        if picture := keep(f"{size}.png"):
            await browser.picture(picture)
        return {
            "overlaps": await browser.run(OVERLAPS),
            "outside": await browser.run(OUTSIDE),
            "width": await browser.run("document.documentElement.scrollWidth"),
            "empty": await browser.run(
                "[...document.querySelectorAll('svg[role=img]')].filter(svg => svg.clientHeight < 10).length"
            ),
            "figures": await browser.run("document.querySelectorAll('svg[role=img]').length"),
            "requests": browser.requests,
        }

    found = in_browser(tmp_path, act)
    assert found["overlaps"] == []
    assert found["outside"] == []
    assert found["width"] <= width
    assert found["empty"] == 0
    assert found["figures"] == page.read_text().count('role="img"')
    assert found["requests"] == [page.absolute().as_uri()]


def test_the_background_follows_the_colour_scheme_and_is_light_in_print(page: Path, tmp_path: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"

    async def act(browser: Browser) -> list[str]:
        found = []
        for dark, media in ((False, ""), (True, ""), (True, "print")):
            await browser.open(page, dark=dark, media=media)
            found.append(await browser.run(colour))
        return found

    assert in_browser(tmp_path, act) == ["rgb(255, 255, 255)", "rgb(20, 23, 26)", "rgb(255, 255, 255)"]


def test_the_page_can_be_printed(page: Path, tmp_path: Path) -> None:
    async def act(browser: Browser) -> bool:
        await browser.open(page)
        target = keep("paper.pdf") or tmp_path / "paper.pdf"
        await browser.paper(target)
        assert target.read_bytes().startswith(b"%PDF")
        # The list of runs is open in print, and closed again afterwards.
        return bool(await browser.run("document.querySelector('#method details').open"))

    assert in_browser(tmp_path, act) is False


def test_tables_sort_both_ways_with_rows_without_a_value_last(page: Path, tmp_path: Path) -> None:
    column = "[...document.querySelectorAll('#glance-table tbody tr')].map(row => row.cells[1].dataset.v)"
    click = "document.querySelectorAll('#glance-table thead tr:last-child button')[1].click()"

    async def act(browser: Browser) -> None:
        await browser.open(page)
        for direction in ("ascending", "descending"):
            await browser.run(click)
            values = await browser.run(column)
            numbers = [float(value) for value in values if value]
            assert numbers == sorted(numbers, reverse=direction == "descending")
            assert values[-1] == ""
            state = "document.querySelectorAll('#glance-table thead tr:last-child th')[1].getAttribute('aria-sort')"
            assert await browser.run(state) == direction

    in_browser(tmp_path, act)


def test_amounts_sort_as_numbers(page: Path, tmp_path: Path) -> None:
    async def act(browser: Browser) -> list[str]:
        await browser.open(page)
        await browser.run("document.querySelectorAll('#costs table')[0].querySelectorAll('th button')[2].click()")
        rows = "[...document.querySelectorAll('#costs table')[0].tBodies[0].rows].map(row => row.cells[2].textContent)"
        found: list[str] = await browser.run(rows)
        return found

    amounts = [float(text.strip("$")) for text in in_browser(tmp_path, act)]
    assert amounts == sorted(amounts)
    assert len(set(amounts)) > 1


def test_lists_can_be_filtered(page: Path, tmp_path: Path) -> None:
    async def act(browser: Browser) -> None:
        await browser.open(page)
        type_in = (
            "(box => {{ box.value = '{}'; box.dispatchEvent(new Event('input')); }})(document.querySelector('{}'))"
        )
        shown = "[...document.querySelectorAll('#{} {}')].filter(row => !row.hidden).map(row => row.textContent)"
        await browser.run(type_in.format("planted", "#filter-glance-table"))
        rows = await browser.run(shown.format("glance-table", "tbody tr"))
        assert len(rows) == 1
        assert "planted/0.2" in rows[0]
        assert await browser.run("document.querySelector('#glance output').textContent") == "1 of 6"
        await browser.run(type_in.format("", "#filter-glance-table"))
        assert len(await browser.run(shown.format("glance-table", "tbody tr"))) == 6
        listing = "examples-probe-gest--data-sample-"
        await browser.run(type_in.format("Read as female", f"#filter-{listing}"))
        answers = await browser.run(shown.format(listing, "li"))
        assert answers
        assert all("read as female" in answer.lower() for answer in answers)

    in_browser(tmp_path, act)


def test_hostile_answers_are_not_executed(hostile_page: Path, tmp_path: Path) -> None:
    async def act(browser: Browser) -> None:
        await browser.open(hostile_page)
        assert await browser.run("document.scripts.length") == 1
        assert await browser.run("document.images.length") == 0
        assert await browser.run("document.title") == "</script><script>alert(1)</script>"
        for part in ("onmouseover", "onerror", "style"):
            assert await browser.run(f"document.querySelectorAll('[{part}]').length") == 0
        assert await browser.run("document.body.innerText.includes('</script><script>alert(1)</script>')")

    in_browser(tmp_path, act)


def test_the_policy_blocks_other_scripts_and_styles(page: Path, tmp_path: Path) -> None:
    changed = tmp_path / "changed.html"
    extra = '<script>document.title = "taken over"</script><p id="styled" style="color: red">x</p>'
    changed.write_text(page.read_text().replace("<main>", f"<main>{extra}", 1))

    async def run() -> tuple[str, str, list[str]]:
        async with Browser(tmp_path / "profile") as browser:
            await browser.open(changed)
            title = await browser.run("document.title")
            colour = await browser.run("getComputedStyle(document.querySelector('#styled')).color")
            return title, colour, browser.errors

    title, colour, errors = asyncio.run(run())
    assert title == "batchbench report"
    assert colour == "rgb(27, 31, 36)"
    assert len([text for text in errors if "Content Security Policy" in text]) == 2


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_no_violation(page: Path, tmp_path: Path, dark: bool) -> None:
    spec = importlib.util.find_spec("axe_playwright_python")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("axe is not installed: pip install --no-deps axe-playwright-python")
    axe = (Path(spec.submodule_search_locations[0]) / "axe.min.js").read_text()

    async def act(browser: Browser) -> Any:
        await browser.open(page, dark=dark)
        await browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
        await browser.run(f"{axe}; undefined")
        return await browser.run(
            "axe.run(document, {resultTypes: ['violations']}).then(found => found.violations.map("
            "rule => [rule.id, rule.impact, rule.nodes.map(node => node.html.slice(0, 200))]))"
        )

    assert in_browser(tmp_path, act) == []


def test_a_page_of_twelve_models_fits_every_width(big_page: Path, tmp_path: Path) -> None:
    async def act(browser: Browser) -> None:
        await browser.open(big_page)  # to start the browser; not measured
        seconds = min([await browser.open(big_page) for _ in range(3)])
        print(f"{seconds:.2f} s, {big_page.stat().st_size:,} bytes")  # noqa: T201 - for `pytest -rP`
        if picture := keep("big.png"):
            await browser.picture(picture)
        for width in (1200, 375, 320):
            await browser.open(big_page, width=width)
            await browser.run("for (const part of document.querySelectorAll('details')) part.open = true")
            assert await browser.run(OVERLAPS) == []
            assert await browser.run("document.documentElement.scrollWidth") <= width

    in_browser(tmp_path, act)
