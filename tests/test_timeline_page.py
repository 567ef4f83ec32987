"""The page of a timeline in a browser, at 8 and at 64 ranks: lanes, steps, keys, zoom, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hocket.algorithms import hierarchical, ring
from hocket.timeline import Timeline
from tests.timelines import lockstep

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

VIEW = {"width": 1400, "height": 900}
Open = Callable[..., "Page"]


@pytest.fixture(scope="module")
def eight() -> Timeline:
    return lockstep(hierarchical.all_reduce(2, 4).compile(), 2, lambda i: 1 + i % 7)


@pytest.fixture(scope="module")
def sixty_four() -> Timeline:
    return lockstep(ring.all_reduce(64, 4).compile(), duration=lambda i: 1 + i % 7)


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the page of timelines from a file. At the end no script had failed, and nothing came from elsewhere."""
    wrong: list[str] = []
    pages: list[Page] = []

    def show(first: Timeline, *others: Timeline, **options: object) -> Page:
        file = tmp_path / "timeline.html"
        first.draw(file, *others)
        page = browser.new_page(**{"viewport": VIEW, **options})
        page.on("request", lambda request: request.url.startswith("file:") or wrong.append(request.url))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda message: wrong.append(message.text))
        page.goto(file.as_uri())
        page.wait_for_function("document.getElementById('lanes').dataset.from !== undefined")
        pages.append(page)
        return page

    yield show
    for page in pages:
        page.close()
    assert not wrong


def lanes(page: Page) -> Locator:
    return page.get_by_role("list", name="Lanes").locator(".lane")


def lane(page: Page, rank: int, block: int, which: str = "in lockstep") -> Locator:
    return page.get_by_role("listitem", name=f"{which}, rank {rank}, thread block {block}: ")


def seen(page: Page) -> tuple[float, float]:
    """The times at the left and at the right edge."""
    data = page.locator("#lanes").evaluate("canvas => [Number(canvas.dataset.from), Number(canvas.dataset.to)]")
    return data[0], data[1]


def click(page: Page, timeline: Timeline, number: int) -> None:
    """On the middle of a span."""
    span = timeline.spans[number]
    row = lane(page, span.rank, span.thread_block)
    row.scroll_into_view_if_needed()
    high = row.bounding_box()
    wide = page.locator("#lanes").bounding_box()
    assert high is not None
    assert wide is not None
    begin, end = seen(page)
    at = ((span.begin + span.end) / 2 - begin) / (end - begin)
    page.mouse.click(wide["x"] + at * wide["width"], high["y"] + high["height"] / 2)


def zoom_to(page: Page, timeline: Timeline, number: int) -> None:
    """So far that the span is some pixels wide, by Ctrl and the wheel over it."""
    wide = page.locator("#lanes").bounding_box()
    assert wide is not None
    span = timeline.spans[number]
    page.keyboard.down("Control")
    while (span.end - span.begin) / ((lambda pair: pair[1] - pair[0])(seen(page))) * wide["width"] < 12:
        begin, end = seen(page)
        at = ((span.begin + span.end) / 2 - begin) / (end - begin)
        page.mouse.move(wide["x"] + at * wide["width"], wide["y"] + 100)
        page.mouse.wheel(0, -200)
        page.wait_for_function("before => Number(document.getElementById('lanes').dataset.from) !== before", arg=begin)
    page.keyboard.up("Control")


@pytest.mark.parametrize("name", ["eight", "sixty_four"])
def test_a_step_that_is_clicked_shows_itself(name: str, opened: Open, request: pytest.FixtureRequest) -> None:
    timeline: Timeline = request.getfixturevalue(name)
    page = opened(timeline)
    ranks = timeline.schedule.ranks
    assert lanes(page).count() == sum(len(rank.thread_blocks) for rank in ranks)
    assert lane(page, len(ranks) - 1, 0).count() == 1
    number = next(i for i, s in enumerate(timeline.spans) if s.rank == len(ranks) - 1 and s.waited and s.step > 0)
    zoom_to(page, timeline, number)
    click(page, timeline, number)
    span = timeline.spans[number]
    step = ranks[span.rank].thread_blocks[span.thread_block].steps[span.step]
    details = page.get_by_role("complementary", name="Details")
    details.get_by_text(str(step), exact=True).wait_for()
    text = details.inner_text()
    assert f"rank {span.rank}, thread block {span.thread_block}, step {span.step}" in text
    where = step.where[0].resolve()
    assert str(where) in text
    assert where.source is not None
    assert where.source.strip() in text
    facts = details.locator("dl").inner_text().split("\n")
    said = dict(zip(facts[::2], facts[1::2], strict=True))
    times = span.begin, span.end, span.end - span.begin, span.waited
    for word, time in zip(("begins", "ends", "takes", "waited"), times, strict=True):
        assert said[word] == f"{time:.4g} \u00b5s"
    messages = [m for m in timeline.messages if number in (m.sent, m.received)]
    assert details.get_by_role("button").count() == len(messages) + len(step.waits)
    assert all(details.get_by_text(f"over {m.links[0]}").count() for m in messages)


def test_a_message_leads_to_its_other_end(opened: Open, eight: Timeline) -> None:
    page = opened(eight)
    message = next(m for m in eight.messages if eight.spans[m.sent].rank == 7)
    zoom_to(page, eight, message.sent)
    click(page, eight, message.sent)
    other = eight.spans[message.received]
    page.get_by_role(
        "button", name=f"to rank {other.rank}, thread block {other.thread_block}, step {other.step}"
    ).click()
    assert page.locator("#lanes").get_attribute("data-chosen") == f"0:{message.received}"


def test_the_keyboard_zooms_pans_and_goes_from_step_to_step(opened: Open, eight: Timeline) -> None:
    page = opened(eight)
    canvas = page.locator("#lanes")

    def press(key: str) -> tuple[float, float]:
        page.keyboard.press(key)
        page.evaluate("new Promise(requestAnimationFrame)")
        return seen(page)

    canvas.focus()
    whole = seen(page)
    assert whole[0] < 0
    assert whole[1] > eight.total
    near = press("+")
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 1.5)
    later = press("ArrowRight")
    assert later[0] > near[0]
    assert press("ArrowLeft") == pytest.approx(near)
    assert press("-") == pytest.approx(whole)
    press("+")
    assert press("Home") == pytest.approx(whole)
    own = [i for i, s in enumerate(eight.spans) if (s.rank, s.thread_block) == (0, 0)]
    for number in own[:3]:
        press("Tab")
        assert canvas.get_attribute("data-chosen") == f"0:{number}"
    press("Shift+Tab")
    assert canvas.get_attribute("data-chosen") == f"0:{own[1]}"
    press("Enter")
    assert page.evaluate("document.activeElement.id") == "details"
    press("Escape")
    assert page.evaluate("document.activeElement.id") == "lanes"
    assert canvas.get_attribute("data-chosen") is None
    click(page, eight, own[1])
    press("Tab")
    assert canvas.get_attribute("data-chosen") == f"0:{own[2]}"
    press("Escape")
    press("Tab")
    assert page.evaluate("document.activeElement.id") != "lanes"


def test_a_button_of_the_details_leads_back_to_the_lanes(opened: Open, eight: Timeline) -> None:
    page = opened(eight)
    number = eight.messages[0].sent
    zoom_to(page, eight, number)
    click(page, eight, number)
    page.get_by_role("button", name="to rank").first.focus()
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "lanes"


def test_a_drag_pans_and_chooses_nothing(opened: Open, eight: Timeline) -> None:
    page = opened(eight)
    page.keyboard.press("+")
    page.evaluate("new Promise(requestAnimationFrame)")
    before = seen(page)
    box = page.locator("#lanes").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 400, box["y"] + 200)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 200, steps=4)
    page.mouse.up()
    page.evaluate("new Promise(requestAnimationFrame)")
    assert seen(page)[0] == pytest.approx(before[0] + 100 / box["width"] * (before[1] - before[0]), rel=1e-3)
    assert page.locator("#lanes").get_attribute("data-chosen") is None


def test_two_timelines_are_on_one_axis_and_can_be_paired(opened: Open, eight: Timeline) -> None:
    longer = replace(eight, title="measured: call 3", total=2 * eight.total)
    page = opened(eight, longer)
    assert seen(page)[1] > longer.total
    first, second = lane(page, 0, 0), lane(page, 0, 0, "measured: call 3")
    assert lane(page, 7, 0).bounding_box()["y"] < second.bounding_box()["y"]  # type: ignore[index]
    page.get_by_label("rank by rank").check()
    assert first.bounding_box()["y"] < second.bounding_box()["y"] < lane(page, 1, 0).bounding_box()["y"]  # type: ignore[index]
    number = 0
    zoom_to(page, eight, number)
    click(page, eight, number)
    page.get_by_role("button", name="measured: begins").click()
    assert page.locator("#lanes").get_attribute("data-chosen") == f"1:{number}"


def test_links_are_below_the_lanes_the_busiest_first(opened: Open, eight: Timeline) -> None:
    page = opened(eight)
    rows = page.locator(".row.link")
    assert rows.count() == len(eight.links)
    used = [int(rows.nth(i).locator("span").nth(1).inner_text().removesuffix(" %")) for i in range(rows.count())]
    assert used == sorted(used, reverse=True)
    assert used[0] > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_steps_have_the_colours_of_the_legend(scheme: str, opened: Open, eight: Timeline) -> None:
    page = opened(eight, color_scheme=scheme)
    legend = page.get_by_role("list", name="What colours mean").locator(".opcode i")
    colours = legend.evaluate_all("all => all.map(one => getComputedStyle(one).backgroundColor)")
    assert len(set(colours)) == len({step.opcode for _, _, _, step in eight.schedule.steps()})
    drawn = page.locator("#lanes").evaluate("""canvas => {
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height), found = new Set();
        for (let i = 0; i < data.length; i += 4) found.add(`rgb(${data[i]}, ${data[i + 1]}, ${data[i + 2]})`);
        return [...found];
    }""")
    assert set(colours) <= set(drawn)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert ground in drawn


def test_it_fits_a_narrow_window(opened: Open, eight: Timeline) -> None:
    page = opened(eight, viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#lanes").bounding_box()["width"] > 150  # type: ignore[index]


def test_a_notebook_can_show_it(browser: Browser, eight: Timeline) -> None:
    page = browser.new_page(viewport=VIEW)
    page.set_content(f"<h1>a notebook</h1>{eight._repr_html_()}")
    inside = page.frame_locator("iframe")
    inside.locator("#lanes[data-from]").wait_for()
    assert inside.locator(".lane").count() == sum(len(rank.thread_blocks) for rank in eight.schedule.ranks)
    page.close()
