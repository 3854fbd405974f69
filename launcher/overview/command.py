"""`meshctl status`: what was asked for, from the store to stdout."""

from __future__ import annotations

import json
import os
from functools import partial

from launcher.console import show
from launcher.control.opening import Opened
from launcher.overview.document import document
from launcher.overview.reading import read
from launcher.overview.state import Overview, overview
from launcher.overview.watching import Log, Screen, follow
from launcher.overview.words import describe


def run(opened: Opened, run_id: str, *, watch: bool, as_json: bool, all_nodes: bool) -> int:
    """Show the run, once or until it ends. Raises UsageError for a run that is not there."""
    store, prefix, secret, _ = opened
    if not watch:
        seen = overview(read(store, prefix, run_id, secret), secret)
        show(json.dumps(document(seen), indent=2) if as_json else describe(seen, all_nodes=all_nodes))
        return 0
    if as_json:
        follow(store, prefix, run_id, secret, _JsonLines())
    elif os.isatty(1):
        follow(store, prefix, run_id, secret, Screen(partial(describe, all_nodes=all_nodes)))
    else:
        follow(store, prefix, run_id, secret, Log())
    return 0


class _JsonLines:
    """An object a line, whenever something but the time since keep-alives has changed."""

    def __init__(self) -> None:
        self._before = ""

    def __call__(self, seen: Overview) -> None:
        content = document(seen)
        ages = [node.pop("silent_s") for node in content["nodes"]]
        text = json.dumps(content)
        if text != self._before:
            self._before = text
            for node, age in zip(content["nodes"], ages, strict=True):
                node["silent_s"] = age
            show(json.dumps(content))
