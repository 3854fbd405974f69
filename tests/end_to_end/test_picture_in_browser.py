"""Pictures and pages of a plan in a real browser: whether words fit and nothing is cut off.

A page of our own shows what is tested, measures it with the browser's own boxes, and leaves the answer as JSON in
its document. Pages to test are shown in frames, as wide as a window and as wide as a telephone.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.documents.browser import dom, needs_browser, screenshot
from tests.support.documents.pages import ROOT
from tests.support.placement import samples

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


def answer(tmp_path: Path, body: str, script: str) -> Any:
    """What `script` returns in a page with `body`, once everything in it is loaded."""
    page = tmp_path / "measuring.html"
    page.write_text(
        f'<!DOCTYPE html><meta charset="utf-8"><body style="margin:0">{body}<pre id="answer"></pre><script>{MEASURE}'
        f"function found() {{ {script} }}\n"
        'addEventListener("load", () => {'
        ' document.getElementById("answer").textContent = "answer:" + JSON.stringify(found()) });</script>'
    )
    said = re.search(r'<pre id="answer">answer:(.*?)</pre>', dom(page, tmp_path), re.DOTALL)
    assert said is not None, "the page's own script did not end"
    return json.loads(html.unescape(said[1]))


def frame(page: str, width: int) -> str:
    return f'<iframe style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe>'


@needs_browser
def test_words_fit_and_nothing_is_cut_off_or_hidden(tmp_path: Path) -> None:
    pictures = [case().svg() for case in samples.ALL]
    found = answer(tmp_path, "".join(pictures), 'return [...document.querySelectorAll("body > svg")].map(measure)')
    faults = [
        {case.__name__: {name: said for name, said in one.items() if said and isinstance(said, list)}}
        for case, one in zip(samples.ALL, found, strict=True)
    ]
    assert faults == [{case.__name__: {}} for case in samples.ALL]
    assert [one["tiles"] for one in found] == [8, 31, 8, 144, 512, 4096, 1, 6, 33]
    assert all(one["texts"] > 3 for one in found)


@needs_browser
def test_a_page_is_no_wider_than_a_window_or_a_telephone(tmp_path: Path) -> None:
    pages = [case().html() for case in (samples.lost_one, samples.many, samples.hostile, samples.changed)]
    found = answer(
        tmp_path,
        "".join(frame(page, width) for page in pages for width in (1200, 390)),
        """
        return [...document.querySelectorAll("iframe")].map((frame) => {
          const page = frame.contentDocument, root = page.documentElement;
          const measured = measure(page.querySelector("svg"));
          return [root.scrollWidth - root.clientWidth, measured.scale, measured.overflow,
                  page.querySelectorAll("table").length, root.dataset.error || ""];
        });
        """,
    )
    assert found == [[0, 1, [], 3, ""]] * 8  # a picture as large as it is, which scrolls; small words stay words


@needs_browser
def test_the_file_itself_is_an_image(tmp_path: Path) -> None:
    file = tmp_path / "plan.svg"
    file.write_text(samples.hostile().svg())
    assert "parsererror" not in dom(file, tmp_path)
    image = screenshot(file, tmp_path, 1120, 700)
    assert image.startswith(b"\x89PNG")
    assert len(image) > 20_000, "an empty page has some 4,000"


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
