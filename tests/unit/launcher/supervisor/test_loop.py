"""What the supervisor does when something happens, in transcripts whose words `simulated_kernel` explains."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.simulated_kernel import play

TRANSCRIPTS = (Path(__file__).parent / "transcripts.txt").read_text().strip().split("\n\n")


@pytest.mark.parametrize("transcript", TRANSCRIPTS, ids=lambda text: text.partition("\n")[0].strip("# ."))
def test_the_transcript_is_what_happens(transcript: str) -> None:
    title, _, happening = transcript.partition("\n")
    assert play(happening) == happening, title
