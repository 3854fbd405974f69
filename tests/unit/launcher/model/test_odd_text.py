"""What a text shows of how it came here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.model.odd_text import explain, explain_accepted, explain_empty

SHELL = "let a shell replace {}, or write its value: single quotes, YAML and env files leave it as it is"
WINDOWS = "give the file that it comes from Unix line ends: it ends with a carriage return"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("$GPUS", SHELL.format("$GPUS")),
        ("tcp://${HEAD}:29500", SHELL.format("${HEAD}")),
        ("$(nproc --all)", SHELL.format("$(nproc --all)")),
        ("$(MASTER):29500", "define MASTER in the container's env: nothing has replaced $(MASTER)"),
        ("{{ nodes }}", "render the template: nothing has replaced {{ nodes }}"),
        ("<head node>:1", "write a value in place of <head node>: nothing has replaced it"),
        ("%NODES%", "write a value in place of %NODES%: nothing has replaced it"),
        ("2\r", WINDOWS),
        ('"2"', "write 2 without quotes: they are part of the value"),
        ("'a:1'", "write a:1 without quotes: they are part of the value"),
        ('""', "write a value without quotes: they are part of the value"),
        ("\u20142", "write --2 in ASCII: it has '\\u2014' (em dash)"),
        ("\u201c2\u201d", "write 2 in ASCII: it has '\\u201c' (left double quotation mark)"),
        ("2\u00a0", "write 2 in ASCII: it has '\\xa0' (no-break space)"),
        ("two", ""),
        ("5 $", ""),
        ("it's", ""),
    ],
)
def test_a_text_shows_its_cause(text: str, hint: str) -> None:
    assert explain(text) == hint


@pytest.mark.parametrize(
    ("text", "is_odd"),
    [
        ("$LOGS", True), ("/logs/${USER}", True), ('"logs"', True), ("logs\r", True), ("{{ dir }}", True),
        ("50%", False), ("a'b", False), ("<x>", False), ("Ada\u2019s logs", False), ("{0}", False), ("'", False),
    ],
)  # fmt: skip
def test_only_what_hardly_anybody_means_is_remarked_upon(text: str, is_odd: bool) -> None:
    assert bool(explain_accepted(text)) == is_odd


@pytest.mark.parametrize(
    ("text", "start"),
    [("", "give it"), (" ", "give it"), (":29500", "set what"), ("dp=,tp=2", "set what"), ("a,b", "")],
)
def test_an_empty_part_may_be_a_variable_without_a_value(text: str, start: str) -> None:
    assert explain_empty(text).startswith(start)
    assert bool(explain_empty(text)) == bool(start)


@given(st.text(max_size=400))
def test_a_hint_is_one_printable_line_of_bounded_length(text: str) -> None:
    for hint in (explain(text), explain_accepted(text), explain_empty(text)):
        assert hint.isprintable()
        assert len(hint) < 900
