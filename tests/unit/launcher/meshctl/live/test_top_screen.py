"""meshctl top: the screen itself, with its keys, in a terminal that is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from launcher.meshctl.live.source import RunGoneError
from tests.support.run_reports import REPORT, FakeSource, make_event, make_node


def drive(source: FakeSource, steps: Callable[[object], Awaitable[None]], size: tuple[int, int] = (80, 24)) -> None:
    pytest.importorskip("textual")
    from launcher.meshctl.live.top_screen import TopScreen

    async def run() -> None:
        screen = TopScreen(source)  # type: ignore[arg-type]
        async with screen.run_test(size=size) as pilot:
            await steps(pilot)

    asyncio.run(run())


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
        from textual.widgets import DataTable, Static

        app = pilot.app  # type: ignore[attr-defined]
        table = app.query_one("#ranks", DataTable)
        await wait_for(pilot, lambda: table.row_count == 4)
        await wait_for(pilot, lambda: "[bold]hello" in str(app.query_one("#events", Static).render()))
        await pilot.press("down", "s")  # type: ignore[attr-defined]
        assert "sorted by cpu" in str(app.query_one("#title", Static).render())
        assert table.cursor_row == 1
        await pilot.press("tab")  # type: ignore[attr-defined]
        assert app.query_one("#nodes", DataTable).row_count == 3
        await pilot.press("question_mark")  # type: ignore[attr-defined]
        assert app.query_one("#keys").display
        source.error = RunGoneError("the agent has ended")
        await wait_for(pilot, lambda: "no agent on this machine" in str(app.query_one("#head", Static).render()))
        await pilot.press("q")  # type: ignore[attr-defined]
        assert app.return_code == 0

    drive(source, steps)


def test_a_tiny_terminal_and_a_run_of_thousands_of_ranks_do_not_break_it() -> None:
    nodes = tuple(make_node(index, node=f"h{index}", member_id=f"m{index}") for index in range(500))
    source = FakeSource(replace(REPORT, nodes=nodes))

    async def steps(pilot: object) -> None:
        from textual.widgets import DataTable

        table = pilot.app.query_one("#ranks", DataTable)  # type: ignore[attr-defined]
        await wait_for(pilot, lambda: table.row_count == 1000)

    drive(source, steps, size=(20, 5))
