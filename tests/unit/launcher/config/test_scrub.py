"""What the processes that an agent starts do not inherit: its secrets."""

from __future__ import annotations

import ast
from pathlib import Path

import launcher
from launcher.config import scrub

PACKAGE = Path(launcher.__file__).parent
STARTS = {"Popen", "run", "call", "check_call", "check_output"}


def test_a_command_is_given_all_but_the_secrets() -> None:
    secrets = {name + suffix: "a secret" for name in scrub.NAMES for suffix in ("", "_FILE")}
    assert scrub.drop_secrets({"PATH": "/bin", **secrets}) == {"PATH": "/bin"}


def test_no_process_is_started_with_the_environment_of_the_agent_as_it_is() -> None:
    """By a call of subprocess; the supervisor takes from its specs which variables to unset."""
    texts = ((path, path.read_text()) for path in sorted(PACKAGE.rglob("*.py")))
    calls = [
        (path, call)
        for path, text in texts
        if "subprocess" in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in STARTS
        if isinstance(call.func.value, ast.Name) and call.func.value.id == "subprocess"
    ]
    assert len(calls) > 4, "calls are found"
    assert [f"{path}:{call.lineno}" for path, call in calls if "env" not in {word.arg for word in call.keywords}] == []
