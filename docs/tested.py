"""Writes the part of reference/tested.md that comes from the record of a GPU; all other text there is written by hand.

`python docs/tested.py` after a new record (`make docs` does it); a test compares.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # started as a script

from tests.support.gpu import table  # noqa: E402

PAGE = ROOT / "docs" / "reference" / "tested.md"
MARKS = re.compile(r"(?<=<!-- made: gpu -->\n).*?(?=<!-- end: gpu -->)", flags=re.DOTALL)


# docs/internals/decisions/0036-generated-parts-of-the-performance-page.md
def page() -> str:
    """The whole page. Raises RecordError for a record that cannot be published, ValueError without the marks."""
    text = PAGE.read_text()
    if len(MARKS.findall(text)) != 1:
        raise ValueError(f"{PAGE} needs one part between <!-- made: gpu --> and <!-- end: gpu -->")
    record = table.RECORD.read_text() if table.RECORD.exists() else ""
    return MARKS.sub(lambda _: f"\n{table.render_rows(record)}\n\n", text)


if __name__ == "__main__":
    PAGE.write_text(page())
