"""`meshctl status`: prints the requested view of the store's data to stdout."""

from __future__ import annotations

import json
import os
from functools import partial

from launcher.meshctl.requests.session import StoreSession
from launcher.meshctl.status.document import encode_overview
from launcher.meshctl.status.reader import read_job
from launcher.meshctl.status.render import describe
from launcher.meshctl.status.state import Overview, build_overview
from launcher.meshctl.status.watcher import ChangePrinter, Screen, follow
from launcher.model.console import write_stdout


def run(session: StoreSession, run_id: str, *, watch: bool, as_json: bool, all_nodes: bool) -> int:
    """Show the run, once or until it ends. Raises UsageError for an unknown run."""
    store, prefix, secret, _ = session
    if not watch:
        seen = build_overview(read_job(store, prefix, run_id, secret), secret)
        write_stdout(json.dumps(encode_overview(seen), indent=2) if as_json else describe(seen, all_nodes=all_nodes))
        return 0
    if as_json:
        follow(store, prefix, run_id, secret, _JsonLinesPrinter())
    elif os.isatty(1):
        follow(store, prefix, run_id, secret, Screen(partial(describe, all_nodes=all_nodes)))
    else:
        follow(store, prefix, run_id, secret, ChangePrinter())
    return 0


class _JsonLinesPrinter:
    """Prints one object per line, whenever anything except the time since keep-alives has changed."""

    def __init__(self) -> None:
        self._before = ""

    def __call__(self, overview: Overview) -> None:
        content = encode_overview(overview)
        ages = [node.pop("silent_s") for node in content["nodes"]]
        text = json.dumps(content)
        if text != self._before:
            self._before = text
            for node, age in zip(content["nodes"], ages, strict=True):
                node["silent_s"] = age
            write_stdout(json.dumps(content))
