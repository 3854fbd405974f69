"""A socket for questions, as an agent opens it."""

from __future__ import annotations

import select

from launcher.parts.host import Watcher
from launcher.views.questions.local_listener import open_listener
from launcher.views.questions.question_socket import QuestionSocket


def open_question_socket(poll: select.poll) -> QuestionSocket:
    listener = open_listener()
    assert listener is not None
    watcher = Watcher(poll)
    watcher.register(listener.fileno())
    return QuestionSocket(watcher, listener)
