"""`meshctl why`: which rank a running job waits for, as its leader has concluded. Nothing of the job is stopped."""

from __future__ import annotations

import msgspec

from launcher.diagnosis.answer import Conclusion, render_answer
from launcher.model.errors import TemporaryError
from launcher.views.questions.local_socket import QuestionSource
from rendezvous import codec
from rendezvous.records import name_run


def ask(source: QuestionSource, limit_s: float) -> Conclusion:
    """Ask the leader. Raises TemporaryError if there is no answer."""
    try:
        return codec.find_decoder(Conclusion).decode(source.ask_why(limit_s))
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        raise TemporaryError(f"the answer of {name_run(source.run_id)} cannot be read") from None


def render(conclusion: Conclusion, *, stacks: bool) -> str:
    """Render an answer for a terminal."""
    return conclusion.stacks if stacks and conclusion.stacks else render_answer(conclusion.answer)
