"""The part that opens the page where this agent leads."""

from __future__ import annotations

import math
import urllib.request
from typing import Any

from launcher.extensions.page.part import LivePage
from launcher.parts.part import RETRY_S, Fact, LeadershipChanged
from tests.support.network.namespaces import free_port
from tests.support.threads import no_threads
from tests.support.waiting import wait_until


def lead(page: LivePage, is_leader: bool) -> None:
    page.take(Fact(LeadershipChanged(is_leader), 1, 10.0, 0.0))


def test_the_page_comes_and_goes_with_the_leadership() -> None:
    said: list[str] = []
    source: Any = None
    port = free_port("127.0.0.1")
    page = LivePage(("127.0.0.1", port), "--serve", source, said.append)
    assert page.wake_at == math.inf
    lead(page, True)
    with no_threads():
        assert page.advance(10.0) == ()
    assert page.wake_at == 10.0 + RETRY_S
    page.advance(11.0)
    assert page.wake_at == math.inf
    wait_until(lambda: said, what="the page")
    assert said[0].startswith("live page: http")
    lead(page, False)
    page.advance(12.0)

    def is_gone() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
        except OSError as error:
            return not hasattr(error, "code")
        return False

    wait_until(is_gone, what="the end of the page")
    page.close()
