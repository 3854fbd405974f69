"""Each transcript is a schedule that once broke something, or would break a simpler design.

To accept a change in behaviour, run with UPDATE_TRANSCRIPTS=1 and read the difference as you would code.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.simulation import transcript

TRANSCRIPTS = sorted((Path(__file__).parent / "transcripts").glob("*.txt"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_the_transcript_is_what_happens(path: Path) -> None:
    text = path.read_text()
    played = transcript.run(text)
    if os.environ.get("UPDATE_TRANSCRIPTS"):
        assert played == transcript.run(text), "the same script must play the same"
        path.write_text(played)
    assert played.splitlines() == path.read_text().splitlines()


def test_transcripts_are_there_show_nothing_that_must_not_be_and_name_a_wrong_line() -> None:
    assert len(TRANSCRIPTS) >= 90
    assert not [path.stem for path in TRANSCRIPTS if transcript.VIOLATION in path.read_text()]
    with pytest.raises(ValueError, match="line 2: 'dance a'"):
        transcript.run("start a\ndance a\n")
