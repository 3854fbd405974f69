"""Pictures and pages of a plan in a real browser: whether words fit and nothing is cut off.

A page of our own shows what is tested and measures it with the browser's own boxes. Pages to test are shown in frames,
as wide as a window and as wide as a telephone.
"""

from __future__ import annotations

import html
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support.documents.pages import ROOT
from tests.support.page.browser import needs_browser
from tests.support.placement import samples

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# For an <svg>: words wider than their tile or frame, what reaches out of the picture, words upon words.
MEASURE = """
function inside(inner, outer) {
  const slack = 0.51;
  return inner.left >= outer.left - slack && inner.right <= outer.right + slack
      && inner.top >= outer.top - slack && inner.bottom <= outer.bottom + slack;
}
function box(element) { return element.getBoundingClientRect(); }
function told(element) { return element.textContent || element.outerHTML; }
function measure(svg) {
  const texts = [...svg.querySelectorAll("text")], boxes = texts.map(box);
  const found = {overflow: [], outside: [], upon: []};
  const scale = box(svg).width / svg.viewBox.baseVal.width;
  found.tiles = svg.querySelectorAll("title ~ .node").length;
  found.texts = texts.length;
  found.scale = scale;
  texts.forEach((text, index) => {
    const around = text.parentNode.querySelector(":scope > title ~ rect.node, :scope > title ~ rect.frame");
    if (around && !inside(boxes[index], box(around))) found.overflow.push(told(text));
    for (let other = 0; other < index; other++) {
      const one = boxes[index], two = boxes[other], shared = 1.5 * scale;
      if (one.left + shared < two.right && two.left + shared < one.right
          && one.top + shared < two.bottom && two.top + shared < one.bottom)
        found.upon.push(told(texts[other]) + " / " + told(text));
    }
  });
  svg.querySelectorAll("rect, text, path").forEach((element) => {
    if (!inside(box(element), box(svg))) found.outside.push(told(element));
  });
  return found;
}
"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    yield page
    page.close()


def show(page: Page, body: str) -> None:
    """A page with this in it, which can `measure`."""
    page.set_content(f'<!DOCTYPE html><body style="margin:0">{body}<script>{MEASURE}</script>')


def frame(page: str, width: int) -> str:
    return f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe>'


@needs_browser
def test_words_fit_and_nothing_is_cut_off_or_hidden(page: Page) -> None:
    show(page, "".join(case().svg() for case in samples.ALL))
    found = page.evaluate('[...document.querySelectorAll("body > svg")].map(measure)')
    faults = [
        {case.__name__: {name: said for name, said in one.items() if said and isinstance(said, list)}}
        for case, one in zip(samples.ALL, found, strict=True)
    ]
    assert faults == [{case.__name__: {}} for case in samples.ALL]
    assert [one["tiles"] for one in found] == [8, 31, 8, 144, 512, 4096, 1, 6, 33]
    assert all(one["texts"] > 3 for one in found)


@needs_browser
def test_a_page_is_no_wider_than_a_window_or_a_telephone(page: Page) -> None:
    pages = [case().html() for case in (samples.lost_one, samples.many, samples.hostile, samples.changed)]
    show(page, "".join(frame(each, width) for each in pages for width in (1200, 390)))
    found = page.evaluate(
        """
        [...document.querySelectorAll("iframe")].map((frame) => {
          const page = frame.contentDocument, root = page.documentElement;
          const measured = measure(page.querySelector("svg"));
          return [root.scrollWidth - root.clientWidth, measured.scale, measured.overflow,
                  page.querySelectorAll("table").length, root.dataset.error || ""];
        })
        """
    )
    # A picture as large as it is, which scrolls; small words stay words. Of the last the time has a table, too.
    assert found == [[0, 1, [], 3, ""]] * 6 + [[0, 1, [], 4, ""]] * 2


@needs_browser
def test_the_file_itself_is_an_image(page: Page, tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    file.write_text(samples.hostile().svg())
    page.goto(file.as_uri())
    assert "parsererror" not in page.content()
    assert len(page.screenshot()) > 20_000, "an empty page has some 4,000"


def test_every_hash_seed_makes_the_same_bytes() -> None:
    script = "from tests.support.placement import samples; print(samples.hostile().html(), samples.racks().svg())"
    one, other = (
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert one == other
    assert len(one) > 10_000
