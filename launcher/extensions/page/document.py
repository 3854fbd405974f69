"""The page as a document: one HTML file with its style, its script and, where it was saved, its data.

The script and the style are allowed by their hashes, and nothing else is: no other host, no inline handler, no image.
A saved page has the same rules in itself, and its data in a block that no browser runs.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from importlib.resources import files

import msgspec

from launcher.extensions.page.shared_run import SharedRun
from launcher.views.requests import LogPage, ReadLogs
from rendezvous.errors import MeshrunError

_SLOT = '<script type="application/json" id="saved"></script>'
_META = '<meta name="policy">'
SAVED_LOG_NODES_MAX = 32
SAVED_LOG_LINES = 100
SAVED_LOGS_LIMIT_S = 15.0


def load_document() -> tuple[bytes, str]:
    """Load the page from the package, without data; return it with the Content-Security-Policy that a server sends."""
    text = _read_page()
    return text.replace(_META, "").encode(), _make_policy(text, "connect-src 'self'", "frame-ancestors 'none'")


def _read_page() -> str:
    return files(__package__).joinpath("live.html").read_text("utf-8")


def _make_policy(text: str, *rules: str) -> str:
    allowed = []
    for name in ("script", "style"):
        parts = re.findall(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
        allowed.append(f"{name}-src " + " ".join(f"'sha256-{_hash(part)}'" for part in parts))
    return "; ".join(("default-src 'none'", *allowed, "base-uri 'none'", "form-action 'none'", *rules))


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def save_document(shared: SharedRun, *, has_stacks: bool) -> bytes:
    """Return the page with its data, for a file: state, events, the ends of logs, and the last answer to why.

    `has_stacks`: ask why now. What cannot be read is left out, with its reason in the page. Raises TemporaryError if
    the run does not answer at all.
    """
    view = shared.read_run().body
    remarks: list[str] = []
    why = shared.last_why
    if has_stacks:
        try:
            why = shared.ask_why()
        except MeshrunError as error:
            remarks.append(f"no stacks: {error}")

    until = time.monotonic() + SAVED_LOGS_LIMIT_S

    def read_logs(node: str) -> LogPage:
        if time.monotonic() > until:
            return LogPage(chunks=(), cursors=(), remark=f"not read: others took {SAVED_LOGS_LIMIT_S:g} s")
        try:
            return shared.list_logs(node, ReadLogs(tail_lines=SAVED_LOG_LINES))
        except MeshrunError as error:
            return LogPage(chunks=(), cursors=(), remark=str(error))

    logs = {node: read_logs(node) for node in shared.list_log_nodes(SAVED_LOG_NODES_MAX)}
    own = {"run": msgspec.Raw(view), "why": msgspec.Raw(why or b"null")}
    data = msgspec.json.encode({**own, "logs": logs, "remarks": remarks})
    text = _read_page()
    policy = f'<meta http-equiv="Content-Security-Policy" content="{_make_policy(text)}">'
    safe = data.decode().replace("<", "\\u003c")  # no text of the job can end the block
    return text.replace(_META, policy).replace(_SLOT, _SLOT.replace("><", f">{safe}<", 1)).encode()
