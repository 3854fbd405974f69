"""What the page answers: itself, and the questions of its script.

/           the page
/save       the page with its data, as a file
/api/run    a run, by run_json, with the rows and tables that are drawn of it
/api/why    a Conclusion
/api/logs?node=NODE&rank=R   a LogPage
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from launcher.extensions.page.document import load_document, save_document
from launcher.extensions.page.shared_run import SharedRun, compress
from launcher.model.errors import UsageError
from launcher.views.http.http_server import JSON, Response
from launcher.views.http.path_group import Answer
from launcher.views.questions.local_socket import QuestionSource
from launcher.views.requests import LogCursor, ReadLogs
from rendezvous import codec

LOG_LINES_MAX = 2000
NAME_MAX = 255
_HTML = "text/html; charset=utf-8"


def make_paths(source: QuestionSource) -> Mapping[str, Answer]:
    """Return the answers about a run, which all readers share."""
    shared, (text, policy) = SharedRun(source), load_document()
    headers = {"Content-Security-Policy": policy}
    page = Response(body=text, gzip=compress(text), content_type=_HTML, headers=headers)
    saved_as = {"Content-Disposition": 'attachment; filename="meshrun.html"'}

    return {
        "/": lambda request: page,
        "/save": lambda request: Response(
            body=save_document(shared, has_stacks=False), content_type=_HTML, headers=saved_as
        ),
        "/api/run": lambda request: shared.read_run(),
        "/api/logs": lambda request: Response(
            body=msgspec.json.encode(shared.list_logs(_read_name(request.query), _read_logs(request.query))),
            content_type=JSON,
        ),
        "/api/why": lambda request: Response(body=shared.ask_why(), content_type=JSON),
    }


def _read_integer(query: Mapping[str, str], name: str, default: int) -> int:
    text = query.get(name, str(default))
    if not (text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 16):
        raise UsageError(f"{name} must be a whole number")
    return int(text)


def _read_name(query: Mapping[str, str]) -> str:
    name = query.get("node", "")
    if len(name) > NAME_MAX:
        raise UsageError(f"node must have at most {NAME_MAX} letters")
    return name


def _read_logs(query: Mapping[str, str]) -> ReadLogs:
    """Read a request for logs: `lines` of each file's end, or what follows `cursors`, a list of [file, offset]."""
    try:
        cursors = codec.find_decoder(tuple[LogCursor, ...]).decode(query.get("cursors", "[]"))
    except msgspec.MsgspecError:
        raise UsageError("cursors must be a list of [file, offset]") from None
    return ReadLogs(
        cursors=cursors,
        tail_lines=min(LOG_LINES_MAX, max(0, _read_integer(query, "lines", 200))),
        rank=_read_integer(query, "rank", -1),
        round=_read_integer(query, "round", 0),
    )
