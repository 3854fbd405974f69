"""A real browser that tests look through: the system's chromium, driven by playwright.

Every page is watched: what it logs as an error or a warning, what it asks of another host, and errors of its script
are collected in `faults`.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.support.processes.tree import TOKEN_VARIABLE, kill_family

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DESKTOP, PHONE = (1280, 800), (390, 844)
LIMIT_S = 30.0
PROGRAM = shutil.which("chromium")

needs_browser = pytest.mark.skipif(
    PROGRAM is None or find_spec("playwright") is None,
    reason="needs playwright, and chromium: tests/support/install_packages.sh browser",
)


class Window:
    """A window of this size. `page`: playwright's; `faults`: what should not have happened.

    `close_server` is set by whoever has opened a page of a server that it can close.
    """

    close_server: Callable[[], None]

    def __init__(self, browser: Browser, size: tuple[int, int], scheme: str) -> None:
        from playwright.sync_api import expect

        expect.set_options(timeout=LIMIT_S * 1000)
        width, height = size
        dark = "dark" if scheme == "dark" else "light"
        self._context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=dark)  # type: ignore[arg-type]
        self._context.set_default_timeout(LIMIT_S * 1000)
        self.faults: list[str] = []
        self.page = self.open()

    def open(self) -> Page:
        """A page whose faults are collected, too."""
        page = self._context.new_page()
        page.on("console", lambda said: self._note(said.type in ("error", "warning"), said.text))
        page.on("pageerror", lambda error: self._note(True, str(error)))
        page.on("dialog", lambda dialog: self._note(True, f"a dialog: {dialog.message}"))
        page.on("request", lambda request: self._note(_is_foreign(request.url), request.url))
        return page

    def close(self) -> None:
        """Close its pages, which would ask for news otherwise until the browser ends."""
        self._context.close()

    def _note(self, is_fault: bool, text: str) -> None:
        if is_fault:
            self.faults.append(text)

    def overflow(self) -> int:
        """How many pixels the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def _is_foreign(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme not in ("file", "data", "blob") and parts.hostname != "127.0.0.1"


@contextmanager
def open_browser() -> Iterator[Browser]:
    """Start chromium; all its processes are gone at the end."""
    from playwright.sync_api import sync_playwright

    token = secrets.token_hex(8)
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    with sync_playwright() as driver:
        environ: dict[str, str | float | bool] = {**os.environ, TOKEN_VARIABLE: token}
        try:
            yield driver.chromium.launch(executable_path=PROGRAM, args=arguments, env=environ)
        finally:
            kill_family(token)
