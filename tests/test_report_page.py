"""The page in a real browser: hostile text stays text, nothing is fetched, the keyboard does everything.

Needs Chromium on the machine (Debian: apt install chromium); skipped without.
"""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from synthetic import COMMANDS, make_group
from test_report import quietly, write_run

from collect.games import Game
from collect.schema import STEPS
from collect.store import open_run
from collect.trajectory import Group
from reports.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (Debian: apt install chromium)")

# As root in a container there is no sandbox; and Chromium itself must not look for the network either.
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync", "--disable-quic"]

HOSTILE = (
    "<script>hit('script')</script>",
    "</script><script>hit('closed')</script>",
    "<!--<script>hit('comment')</script>-->",
    "<img src=x onerror=\"hit('img')\">",
    "\"><svg onload=\"hit('svg')\"><a href='javascript:hit(1)'>x</a>",
    "<iframe srcdoc=\"<script>parent.hit('frame')</script>\"></iframe><link rel=stylesheet href=http://203.0.113.7/x.css>",
    "{{constructor.constructor(\"hit('template')\")()}} ${hit('literal')} ]]> \\u003cscript>",
    "\u202egnp.exe \u2066hidden\u2069 \u200b\u2028\u2029\x85\x1b[31m\x00 \ud800",
    "A" * 1_000_000,
)


@dataclass
class Seen:
    """What a page did that it must not do."""

    hits: list[Any] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


Open = Callable[..., "tuple[Page, Seen]"]


@pytest.fixture(scope="module")
def chromium() -> Iterator["Browser"]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium: "Browser") -> Iterator[Open]:
    """Open a page; whatever it runs that calls `hit`, asks the network or complains of is noted."""
    contexts = []

    def show(path: Path, **more: Any) -> "tuple[Page, Seen]":
        context = chromium.new_context(**more)
        contexts.append(context)
        page, seen = context.new_page(), Seen()
        page.expose_function("hit", lambda *told: seen.hits.append(told))
        page.on("request", lambda request: seen.requests.append(request.url))
        page.on("dialog", lambda dialog: seen.hits.append(dialog.message))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.goto(path.as_uri())
        page.wait_for_selector(".cell, .empty")
        return page, seen

    yield show
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def page_of_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return write_report([write_run(folder / "run")], folder / "out", quietly).page


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which every text that can come from outside is hostile: names, task types, actions, replies, answers."""
    folder = tmp_path_factory.mktemp("hostile")
    run = folder / "<img src=x onerror=hit('folder')>"
    rng = random.Random(1)
    with open_run(run, {"model": "<script>hit('model')</script>", "games": "\u202e<b>"}, {}) as writer:
        for number in range(12):
            writer.add(hostile_group(rng, number))
    part = next((run / "steps").glob("*.parquet"))
    table = pq.read_table(part)
    broken = pa.array([b"\xff\xfe<script>hit('bytes')</script>\xc3"] * table.num_rows, pa.binary()).view(pa.string())
    place = table.schema.get_field_index("reply")
    pq.write_table(table.set_column(place, STEPS.arrow.field("reply"), broken), part)
    return write_report([run], folder / "out", quietly).page


def hostile_group(rng: random.Random, number: int) -> Group:
    def bad() -> str:
        return HOSTILE[rng.randrange(len(HOSTILE))]

    group = make_group(rng, 3, 4, number=number)
    name = f"{HOSTILE[number % 7]}-{number}"
    game = Game(id=f"{name}/trial", path=Path("x"), split="train", task_type=HOSTILE[number % 3])
    trajectories = []
    for trajectory in group.trajectories:
        steps = tuple(replace(step, observation=bad(), reply=bad(), action=bad()) for step in trajectory.steps)
        trajectories.append(replace(trajectory, steps=steps, final_observation=bad()))
    return replace(group, game=game, trajectories=tuple(trajectories))


@pytest.mark.parametrize("bypass", [False, True], ids=["with the page's policy", "by escaping alone"])
def test_hostile_text_is_shown_and_never_run(hostile_page: Path, show: Open, bypass: bool) -> None:
    page, seen = show(hostile_page, bypass_csp=bypass)
    for place in range(page.locator("#list .item").count()):
        page.locator("#list .item").nth(place).click()
        page.wait_for_selector(".cell")
        for cell in range(min(4, page.locator(".cell").count())):
            page.locator(".cell").nth(cell).click()
    page.wait_for_timeout(300)
    assert seen.hits == []
    assert seen.requests == [hostile_page.as_uri()]
    assert seen.complaints == []
    assert page.locator("main script, main iframe, main img, main link, main [onload], main [onerror]").count() == 0
    assert page.locator("a[href^='javascript']").count() == 0
    text = page.locator("#list").inner_text()
    assert "<script>hit('script')</script>-0" in text
    assert "<img src=x onerror=hit('folder')>" in page.title()


def test_hostile_names_are_text_in_every_drawing(hostile_page: Path) -> None:
    drawn = list(hostile_page.parent.glob("figures/*.svg"))
    assert any(
        "<script>hit('script')</script>" in "".join(ElementTree.parse(path).getroot().itertext()) for path in drawn
    )
    for path in drawn:
        for element in ElementTree.parse(path).iter():
            assert element.tag.rpartition("}")[2] not in {"script", "foreignObject", "image", "a", "iframe"}
            assert not [name for name in element.attrib if name.lower().startswith("on") or name.endswith("href")]


def test_what_cannot_be_seen_is_written_out_and_long_text_cut(hostile_page: Path, show: Open) -> None:
    page, _ = show(hostile_page)
    shown = page.evaluate(
        """async () => {
            const all = JSON.parse(document.getElementById("shelves").textContent)[0].groups, texts = [];
            for (const { packed } of all) {
                const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
                const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
                texts.push(...JSON.parse(await new Response(stream).text()).texts);
            }
            return texts;
        }"""
    )
    assert any("⟨U+202E⟩gnp.exe ⟨U+2066⟩hidden⟨U+2069⟩ ⟨U+200B⟩⟨U+2028⟩" in text for text in shown)
    assert any("\ufffd\ufffd<script>hit('bytes')</script>\ufffd" in text for text in shown)
    assert any("(996,000 more characters)" in text for text in shown)
    assert max(map(len, shown)) < 5_000
    assert hostile_page.stat().st_size < 2_000_000


def test_a_group_is_read_with_the_keyboard_alone(page_of_a_run: Path, show: Open) -> None:
    page, seen = show(page_of_a_run)
    page.locator("#list").focus()
    page.keyboard.press("End")
    chosen = "name => document.querySelector('#group h3').textContent.startsWith(name)"
    page.wait_for_function(chosen, arg=page.locator("#list .item .name").last.inner_text())
    page.keyboard.press("Home")
    name = page.locator("#list .item .name").first.inner_text()
    page.wait_for_function(chosen, arg=name)
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.locator(".detail").is_visible()
    first = page.locator(".detail h4").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.locator(".detail h4").inner_text() != first
    page.keyboard.press("Escape")
    assert not page.locator(".detail").is_visible()
    assert seen.complaints == []


def test_the_tree_is_one_trunk_where_actions_agree_and_splits_where_they_part(tmp_path: Path, show: Open) -> None:
    look, desk, shelf = COMMANDS[0], COMMANDS[2], COMMANDS[3]
    actions = [[look, desk, look], [look, shelf, look], [look, desk, shelf], [look, shelf]]
    rng = random.Random(2)
    with open_run(tmp_path / "run", {"model": "tiny"}, {}) as run:
        for number in range(4):
            run.add(make_group(rng, 4, 4, number=number, actions=actions, won=[False, False, True, True]))
    page, _ = show(write_report([tmp_path / "run"], tmp_path / "out", quietly).page)
    labels = page.evaluate("[...document.querySelectorAll('.cell:not(.end)')].map((cell) => cell.ariaLabel)")
    assert sorted(labels) == sorted(
        [
            f"step 1, 4 of 4 trajectories: {look}",
            f"step 2, 2 of 4 trajectories: {desk}",
            f"step 2, 2 of 4 trajectories: {shelf}",
            f"step 3, 1 of 4 trajectories: {look}",
            f"step 3, 1 of 4 trajectories: {look}",
            f"step 3, 1 of 4 trajectories: {shelf}",
        ]
    )
    widths = page.evaluate(
        "[1, 2, 3].map((row) => [...document.querySelectorAll('.cell:not(.end)')]"
        ".filter((cell) => cell.ariaLabel.startsWith(`step ${row},`)).reduce((sum, cell) => sum + cell.offsetWidth, 0))"
    )
    assert widths[0] == pytest.approx(widths[1], abs=4)
    assert widths[2] < widths[0] * 0.8


def test_filters_narrow_the_list(page_of_a_run: Path, show: Open) -> None:
    page, _ = show(page_of_a_run)
    everyone = page.locator("#list .item").count()
    page.select_option("#filter-outcome", "mixed")
    mixed = page.locator("#list .item").count()
    assert 0 < mixed < everyone
    assert page.locator("#found").inner_text() == f"{mixed} of {everyone} groups"
    page.select_option("#filter-outcome", "")
    page.select_option("#filter-verdict", "right")
    right = page.locator("#list .item").count()
    assert right == page.locator("#list .tag.right").count() > 0
    page.fill("#filter-name", "no group is called so")
    assert page.locator("#list .item").count() == 0
    assert page.locator("#group").inner_text() == "No group matches."


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_wider_than_the_screen(page_of_a_run: Path, show: Open, width: int) -> None:
    page, seen = show(page_of_a_run, viewport={"width": width, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert seen.complaints == []


def test_the_theme_follows_the_machine_and_the_button(page_of_a_run: Path, show: Open) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, _ = show(page_of_a_run, color_scheme="light")
    dark, _ = show(page_of_a_run, color_scheme="dark")
    assert light.evaluate(background) == "rgb(255, 255, 255)"
    assert dark.evaluate(background) == "rgb(20, 23, 28)"
    ink = "getComputedStyle(document.querySelector('#roc svg text')).fill"
    assert light.evaluate(ink) != dark.evaluate(ink)
    for _ in range(2):
        light.locator("#theme").click()
    assert light.evaluate(background) == "rgb(20, 23, 28)"


@pytest.mark.slow
def test_200_groups_of_8_by_30_stand_in_a_page_under_15_mb_and_the_last_one_asked_for_is_shown(
    tmp_path: Path, show: Open
) -> None:
    rng = random.Random(3)
    with open_run(tmp_path / "run", {"model": "tiny"}, {}) as run:
        for number in range(200):
            run.add(make_group(rng, 8, 30, number=number))
    written = write_report([tmp_path / "run"], tmp_path / "out", quietly)
    assert written.groups_shown == 200
    assert written.bytes < 15_000_000
    page, seen = show(written.page)
    assert page.locator("#list .item").count() == 200
    page.locator("#list").focus()
    for _ in range(30):
        page.keyboard.press("ArrowDown")
    name = page.locator("#list .item[aria-selected=true] .name").inner_text()
    page.wait_for_function("name => document.querySelector('#group h3').textContent.startsWith(name)", arg=name)
    assert page.locator("#list .item").nth(30).get_attribute("aria-selected") == "true"
    assert seen.complaints == []
