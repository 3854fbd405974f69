"""The live page in a real browser, at desktop and phone width: what is drawn, what a click shows, and that text of a
job stays text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

pytest.importorskip("playwright")

from playwright.sync_api import Browser, Page, expect

from launcher.extensions.page.document import save_document
from launcher.extensions.page.shared_run import SharedRun
from launcher.meshctl.live.ranks import list_ranks, make_rank_columns
from tests.support.page.browser import DESKTOP, PHONE, Window, needs_browser
from tests.support.page.fake_run import SCRIPT, FakeRun
from tests.support.page.serving import serve_page

pytestmark = needs_browser
SIZES = pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])


Look = Callable[..., Window]


@pytest.fixture
def look(browser: Browser) -> Iterator[Look]:
    """A window that shows the page of a run. Window and server are closed after the test: both go on by themselves."""
    with ExitStack() as stack:

        def opened(source: FakeRun, size: tuple[int, int] = DESKTOP, scheme: str = "light") -> Window:
            window = stack.enter_context(closing(Window(browser, size, scheme)))
            server = stack.enter_context(closing(serve_page(source)))
            window.close_server = server.close
            window.page.goto(server.url)
            expect(window.page.locator("#content")).to_be_visible()
            return window

        yield opened


def shows(page: Page, selector: str, *texts: str) -> None:
    for text in texts:
        expect(page.locator(selector)).to_contain_text(text)


@pytest.mark.parametrize(
    ("node_count", "size", "scheme"),
    [(4, PHONE, "light"), (64, DESKTOP, "dark"), (1024, DESKTOP, "light"), (1024, PHONE, "dark")],
)
def test_a_run_is_drawn_at_every_size(look: Look, node_count: int, size: tuple[int, int], scheme: str) -> None:
    window = look(FakeRun(node_count), size, scheme)
    page = window.page
    shows(page, "#facts", f"round 3 runs {node_count * 8:,} ranks on {node_count:,} nodes")
    shows(page, "#rows", f"pp=2, dp={node_count // 2}, tp=8", "1 of 3", "h0")
    shows(page, "#map-keys", "1 node leaving", "1 node spare", "1 node lost", "2 ranks no sign of progress for 60 s")
    assert page.locator("#map .node").count() == node_count + 2
    assert page.locator("#map i[data-rank]").count() == node_count * 8
    shows(page, "#goodput", "88 %")
    shows(page, "#goodput-text", "lost 6 min 30 s to loss, 6 min to failure, 1 min 35 s to start")
    shows(page, "#timeline-keys", "time lost to failure", "time lost to loss", "time lost to start")
    shows(page, "#rounds", "KeyError: 'shard_0412'", f"h{node_count} is lost: two dials were refused", "it runs")
    shows(
        page, "#todo", "ranks 27: stopped or blocked", "ranks 5, 21: no sign of progress for 5 min 12 s", "leaving h2"
    )
    assert page.locator("#ranks tr").nth(1).inner_text().split()[:3] == ["27", "h3", "stopped"] or size == DESKTOP
    shows(page, "#events", "round 1 failed: rank 7", "no node joined for 30 s", "ranks 0-7 started")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (dark == "rgb(17, 22, 27)") == (scheme == "dark")
    assert window.overflow() == 0
    assert window.faults == []


@SIZES
def test_a_click_on_a_rank_shows_its_output_and_where_it_stands(look: Look, size: tuple[int, int]) -> None:
    window = look(FakeRun(4), size)
    page = window.page
    page.click("i[data-rank='5']")
    shows(page, "#detail-title", "Rank 5")
    shows(page, "#detail-facts", "pp=0,dp=0,tp=5", "5 min 12 s ago", "load data", "61G/80G")
    shows(page, "#log", "step 1259 loss 1.0101 rank 5")
    shows(page, "#log", "round_3/5/stdout.log")
    page.click("#ask-stack")
    shows(page, "#own-stack", "rank 5 (pp=0 dp=0 tp=5): asleep", "/home/me/loader.py:31")
    shows(page, "#stack", "rank 5 is in read (loader.py:31), asleep", "see what rank 5 does", "All stacks, 2 groups")
    assert page.locator("i.chosen").get_attribute("data-rank") == "5"
    assert "#rank=5" in page.url
    page.reload()
    shows(page, "#detail-title", "Rank 5")
    page.keyboard.press("Escape")
    expect(page.locator("#detail")).to_be_hidden()
    assert window.overflow() == 0
    assert window.faults == []


def test_ranks_and_nodes_of_a_large_run_are_found(look: Look) -> None:
    """By words, by a click and by arrow keys; a rank whose stack many have, in their group."""
    window = look(FakeRun(64))
    page = window.page
    page.fill("#find", "nowhere")
    shows(page, "#ranks", "no rank matches")
    page.fill("#find", "h9 tp=3")
    expect(page.locator("#ranks tr")).to_have_count(2)
    shows(page, "#ranks", "75")
    page.click("button[data-node='h9'] b")
    shows(page, "#detail-facts", "running, ranks 72 to 79", "pod p0, leaf l1", "pid 909")
    shows(page, "#node-ranks", "72", "79")
    page.click("#detail >> text=Close")
    expect(page.locator("#detail")).to_be_hidden()
    page.locator("#map .node[tabindex='0']").focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowLeft", "Enter"):
        page.keyboard.press(key)
    shows(page, "#detail-title", "h1")
    page.click("i[data-rank='300']")
    page.click("#ask-stack")
    shows(page, "#own-stack", "ranks 0, 1, 2, 3, 4, 6, 7, 8 and 1,016 more", "all_reduce")
    assert window.faults == []


def test_the_table_of_ranks_is_that_of_meshctl_ps(look: Look) -> None:
    """The page formats its values itself: with the same forms, in the same columns."""
    source = FakeRun(4)
    page = look(source).page
    rows = [row for row in list_ranks(source.read_run()) if row[1].rank == 27]
    columns = [one for one in make_rank_columns(rows) if one.priority < 7 and one.cells != ("-",)]
    cells = page.locator("#ranks tr:nth-child(2) td").all_inner_texts()
    told = dict(zip(page.locator("#ranks th").all_inner_texts(), cells, strict=True))
    assert told.pop("phase") == "-"
    assert {**told, "step": ""} == {**{one.header: one.cells[0] for one in columns}, "step": ""}, "steps go on"


def test_a_run_that_is_too_large_for_the_way_of_its_answer_says_so(look: Look) -> None:
    source = FakeRun(64)
    source.shortened = 2  # at first only fields of nodes and ranks are left out
    page = look(source).page
    sentence = "an answer through the store is too short for the ranks of 64 nodes"
    shows(page, "#todo", sentence)
    shows(page, "#ranks", sentence)
    assert page.locator("#map .node").count() == 66
    source.shortened = 3
    page = look(source).page
    for selector in ("#todo", "#ranks"):
        shows(page, selector, sentence.replace("the ranks of ", ""))
    shows(page, "#facts", "round 3 runs 512 ranks on 64 nodes")


def test_a_click_on_a_node_shows_its_place_on_a_phone(look: Look) -> None:
    window = look(FakeRun(64), PHONE)
    window.page.click("button[data-node='h9'] b")
    shows(window.page, "#detail-facts", "running, ranks 72 to 79", "pod p0, leaf l1")
    window.page.click("#detail >> text=Close")
    expect(window.page.locator("#detail")).to_be_hidden()
    assert window.faults == []


def test_colours_by_an_axis_and_output_of_a_failed_round(look: Look) -> None:
    window = look(FakeRun(4))
    page = window.page

    def colour(rank: int) -> str:
        return str(page.locator(f"i[data-rank='{rank}']").evaluate("(one) => getComputedStyle(one).backgroundColor"))

    page.select_option("#colour", "pp")
    shows(page, "#map-keys", "pp=0", "pp=1")
    assert colour(0) == colour(7) != colour(16)
    page.select_option("#colour", "")
    assert colour(0) == colour(16) != colour(21)
    with page.expect_request(re.compile(r"/api/logs\?.*rank=7&round=1&")):
        page.locator("#rounds button", has_text="rank 7").click()
    shows(page, "#detail-facts", "Its output in round 1, which has ended.")
    assert window.faults == []


def test_a_script_in_any_text_of_the_job_stays_text(look: Look, tmp_path: Path) -> None:
    source = FakeRun(4, text=SCRIPT)
    window = look(source)
    page = window.page
    page.click("i[data-rank='5']")
    page.click("#ask-stack")
    for selector in ("#rounds", "#events", "#ranks", "#log", "#own-stack", "#stack", "#detail-facts"):
        shows(page, selector, "<script>document.title = 'owned'</script>")
    saved = tmp_path / "saved.html"
    saved.write_bytes(save_document(SharedRun(source), has_stacks=True))
    other = window.open()
    other.goto(f"{saved.as_uri()}#rank=5")
    for selector in ("#rounds", "#events", "#ranks", "#log", "#own-stack", "#stack"):
        shows(other, selector, "<script>document.title = 'owned'</script>")
    for each in (page, other):
        assert each.title() == "llama-70b · meshrun"
        assert each.locator("img").count() == 0
        assert each.locator("script").count() == 2
    assert window.faults == []


def test_a_saved_page_opens_without_a_server(look: Look, tmp_path: Path) -> None:
    window = look(FakeRun(64), PHONE)
    with window.page.expect_download() as download:
        window.page.click("#save")
    assert download.value.suggested_filename == "meshrun.html"
    saved = tmp_path / "run.html"
    download.value.save_as(saved)
    window.close_server()
    page = window.open()
    page.goto(saved.as_uri())
    shows(page, "#banner", "Saved: the run as it was at 2026-12-01")
    shows(page, "#facts", "512 ranks on 64 nodes")
    page.click("i[data-rank='5']")
    shows(page, "#log", "step 1259 loss 1.0101 rank 5")
    expect(page.locator("#ask-stack")).to_have_count(0)
    expect(page.locator("#save")).to_be_hidden()


def test_what_does_not_answer_is_named_and_stays_in_the_picture(look: Look) -> None:
    """A node that falls silent, then the run, then the server; and what a reader has selected stays selected."""
    source = FakeRun(4)
    window = look(source)
    page = window.page
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#ranks tr:nth-child(3)'))")
    selected = page.evaluate("String(getSelection())")
    source.silent = True
    silent = page.locator("button[data-node='h1']")
    expect(silent).to_have_class(re.compile("silent"))
    assert silent.locator("i[data-rank]").count() == 8
    shows(page, "#todo", "silent h1: no answer")
    assert "h1" not in page.locator("#rows").inner_text()
    source.problem = "the agent of run llama-70b on this machine has ended while it was asked"
    shows(page, "#banner", "No new data: the agent of run llama-70b", "What is shown is of")
    shows(page, "#state", "no answer")
    assert page.locator("#map .node").count() == 6
    assert page.evaluate("String(getSelection())") == selected
    source.problem = ""
    expect(page.locator("#banner")).to_be_hidden()
    window.close_server()
    shows(page, "#banner", "the server of this page does not answer")


def test_a_calm_run_has_nothing_to_look_at(look: Look) -> None:
    shows(look(FakeRun(4, calm=True)).page, "#todo", "nothing: all nodes answer")
