"""meshctl top: the screen itself, with its keys, in a terminal that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from launcher.meshctl.live import poller
from launcher.model.errors import TemporaryError
from launcher.views.questions.local_socket import RunGoneError
from tests.support.reasons import because
from tests.support.run_reports import REPORT, FakeSource, make_event, make_node, make_silent


def drive(source: FakeSource, steps: Callable[[object], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    pytest.importorskip("textual")
    from launcher.meshctl.live.top_screen import TopScreen

    async def run() -> None:
        screen = TopScreen(source)  # type: ignore[arg-type]
        async with screen.run_test(size=size) as pilot:
            await steps(pilot)
        screen._draw()  # as its timer may once more, when the widgets are gone

    asyncio.run(run())


def count_ranks(app: object) -> int:
    from textual.widgets import Static

    return str(app.query_one("#ranks", Static).render()).count("\n")  # type: ignore[attr-defined]


async def wait_for(pilot: object, condition: Callable[[], bool]) -> None:
    for _ in range(200):
        if condition():
            return
        await pilot.pause(0.05)  # type: ignore[attr-defined]
    raise AssertionError("waited 10 s")


def test_the_screen_shows_ranks_and_obeys_its_keys() -> None:
    source = FakeSource(REPORT)
    source.events["m0"].append(make_event("remark", "h0", "08:00:00.000", sentence="[bold]hello[/bold]"))

    async def steps(pilot: object) -> None:
        from textual.widgets import Static

        app = pilot.app  # type: ignore[attr-defined]
        await wait_for(pilot, lambda: count_ranks(app) == 4)
        await wait_for(pilot, lambda: "[bold]hello" in str(app.query_one("#events", Static).render()))
        await pilot.press("s")  # type: ignore[attr-defined]
        assert "sorted by cpu" in str(app.query_one("#title", Static).render())
        source.error = RunGoneError("run exp no longer has an agent on this machine")
        await wait_for(pilot, lambda: "no longer has an agent" in str(app.query_one("#head", Static).render()))
        await pilot.press("q")  # type: ignore[attr-defined]
        assert app.return_code == 0

    drive(source, steps)


def test_square_brackets_are_shown_as_they_are() -> None:
    name = "[/] [red]x[/red]"
    source = FakeSource(replace(REPORT, nodes=(make_node(0, name=name, why=because(name)), make_silent(name))))

    async def steps(pilot: object) -> None:
        app = pilot.app  # type: ignore[attr-defined]
        await wait_for(pilot, lambda: count_ranks(app) == 2)
        await pilot.pause()  # type: ignore[attr-defined]
        screen = "\n".join(strip.text for strip in app.screen._compositor.render_strips())
        assert screen.count(f"silent    {name}: no answer") == 1
        assert screen.count(f"{name}  ") == 2

    drive(source, steps)


def test_an_old_state_is_shown_as_old_until_there_is_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "REPORT_INTERVAL_S", 0.01)
    source = FakeSource(REPORT)

    async def steps(pilot: object) -> None:
        from textual.widgets import Static

        def says(text: str) -> bool:
            return text in str(pilot.app.query_one("#head", Static).render())  # type: ignore[attr-defined]

        await wait_for(pilot, lambda: says("restarts  1 of 3"))
        source.error = TemporaryError("the agent has not answered in time")
        await wait_for(pilot, lambda: says("the agent has not answered in time"))
        assert says("state as of ")
        source.error, read_run = None, source.read_run
        source.read_run = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        await wait_for(pilot, lambda: says("ZeroDivisionError: division by zero"))
        source.read_run = read_run  # type: ignore[method-assign]
        await wait_for(pilot, lambda: not says("state as of "))

    drive(source, steps)


def test_a_tiny_terminal_and_a_run_of_thousands_of_ranks_do_not_break_it() -> None:
    nodes = tuple(make_node(index, name=f"h{index}", member_id=f"m{index}") for index in range(500))
    source = FakeSource(replace(REPORT, nodes=nodes))

    async def steps(pilot: object) -> None:
        await wait_for(pilot, lambda: count_ranks(pilot.app) == 1000)  # type: ignore[attr-defined]

    drive(source, steps, size=(20, 5))
