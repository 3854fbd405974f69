"""What a text shows of how it came here: a variable that nothing has replaced, quotes that have become part of it, the
dashes and quotes of a word processor, the end of a line from Windows.

An option cannot mean such a text, or hardly can, and then this is its hint: how the option is written helps nobody who
has written it so. Imported for a text that was refused, or that has one of some letters.
"""

from __future__ import annotations

import re
import unicodedata

from launcher.model.errors import sanitize

_SHELL_OR_TEMPLATE = r"\$\{[^}]*\}|\$\([^)]*\)|\$[A-Za-z_]\w*|\{\{.*?\}\}"
_UNREPLACED = re.compile(rf"{_SHELL_OR_TEMPLATE}|%[A-Za-z_]\w*%|<[A-Za-z_][^<>]*>|@[A-Za-z_]\w*@")
_EMPTY_PART = re.compile(r"(?:^|[=:,])(?=[:,]|$)")
_QUOTES = "\"'`"
_TYPESET = str.maketrans({
    **dict.fromkeys("\u2010\u2011\u2012\u2212", "-"),
    **dict.fromkeys("\u2013\u2014\u2015", "--"),  # what a word processor makes of two
    **dict.fromkeys("\u00ab\u00bb\u2018\u2019\u201a\u201c\u201d\u201e", ""),
    **dict.fromkeys("\u00a0\u2007\u202f", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", ""),
})  # fmt: skip


def explain(text: str) -> str:
    """Return the next step for a text that was refused, if it shows the cause; else ""."""
    if found := _UNREPLACED.search(text):
        return _explain_unreplaced(sanitize(found.group()))
    if text.endswith("\r"):
        return "give the file that it comes from Unix line ends: it ends with a carriage return"
    if odd := next((letter for letter in text if ord(letter) in _TYPESET), ""):
        plain = sanitize(text.translate(_TYPESET).strip()) or "a value"
        return f"write {plain} in ASCII: it has {odd!a} ({unicodedata.name(odd).lower()})"
    if text.strip()[:1] in tuple(_QUOTES):
        bare = sanitize(text.strip().strip(_QUOTES).strip()) or "a value"
        return f"write {bare} without quotes: they are part of the value"
    return ""


def explain_empty(text: str) -> str:
    """Return the next step for a text that was refused and is empty, or a part of it; else ""."""
    if not text.strip():
        return "give it a value, or leave it out: a variable may be empty"
    return "set what is empty in it: a variable may have no value" if _EMPTY_PART.search(text) else ""


def explain_accepted(text: str) -> str:
    """Return the next step for a text that can be meant and hardly is, such as $LOGS for a directory; else ""."""
    is_quoted = len(text) > 1 and text[0] == text[-1] and text[0] in _QUOTES
    return explain(text) if is_quoted or text.endswith("\r") or re.search(_SHELL_OR_TEMPLATE, text) else ""


def _explain_unreplaced(found: str) -> str:
    """Return the next step for a variable or a placeholder that nothing has replaced."""
    if re.fullmatch(r"\$\(\w+\)", found):
        return f"define {found[2:-1]} in the container's env: nothing has replaced {found}"
    if found.startswith("$"):
        return f"let a shell replace {found}, or write its value: single quotes, YAML and env files leave it as it is"
    if found.startswith("{{"):
        return f"render the template: nothing has replaced {found}"
    return f"write a value in place of {found}: nothing has replaced it"
