"""How to write a value that was refused: a time with units, a range with a dash, a list of devices where a number
belongs, axes of a mesh without commas.

What is proposed has been read by the option's own reader. It is loaded once a value was refused; what that reader says
is the hint where none of these functions knows the text.
"""

from __future__ import annotations

import re
import string

from launcher.config.options.readers import Value
from launcher.config.options.table import find_row
from launcher.model import odd_text
from launcher.model.errors import UsageError

_TEXT_MAX = 100
_WITH_TIMES = ("hang-timeout", "grow", "rdzv-conf")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_UNIT = "s|sec|secs|second|seconds|m|min|mins|minute|minutes|h|hr|hrs|hour|hours|d|day|days"
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_TIME = rf"({_NUMBER})\s*({_UNIT})(?![a-z])\s*"
_CLOCK = r"(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})"
_AXIS = r"(?:(?<=\d)\s*x\s*)?([A-Za-z_]+)\s*[=:]?\s*(\d{1,9}|\*)"


def correct(value: Value) -> str:
    """Return the next step for a text that its option refuses; "" if it shows none."""
    if cause := odd_text.explain(value.text):
        return cause
    option, text = value.option, value.text.strip()
    if len(text) > _TEXT_MAX:
        return ""
    if option.metavar == "SECONDS" or option.name in _WITH_TIMES:
        return _correct_times(value, text)
    if option.name == "nnodes":
        bounds = re.fullmatch(r"(\d+)\s*(?:-|\.\.+|,|~|/|to)\s*(\d+)", text)
        return _propose(value, f"{bounds[1]}:{bounds[2]}", "write {}") if bounds else ""
    if option.name == "nproc-per-node":
        return _correct_worker_count(value, text) or _correct_number(value, text)
    if option.name == "mesh":
        return _correct_mesh(value, text)
    return _correct_number(value, text) if option.metavar.partition("|")[0] in ("N", "PORT", "SETS") else ""


def _propose(value: Value, text: str, words: str) -> str:
    """Return `words` with this text in them; "" if the option refuses it, too."""
    return words.format(text) if text != value.text and _accepts(value, text) else ""


def _accepts(value: Value, text: str, name: str = "") -> bool:
    """Whether the option, or the one of this name, would take the text."""
    option = find_row(name) if name else value.option
    assert option is not None
    assert option.read is not None
    try:
        option.read(Value(option, text, option.flag))
    except UsageError:
        return False
    return True


def _correct_times(value: Value, text: str) -> str:
    """Return "write 600" for 10m, "write 5400,start=60" for 1h30min,start=1m."""
    parts = text.split(",")
    written = [re.sub(r"[^=]*$", lambda found: _convert_time(found[0]), part) for part in parts]
    if value.option.name == "rdzv-conf":  # of which one part has been refused, and no other needs to be shown
        refused = [index for index, part in enumerate(parts) if not _accepts(value, part)]
        shown = ",".join(written[index] for index in refused)
    else:
        shown = ",".join(written)
    if proposal := _propose(value, shown, "write {}, in seconds"):
        return proposal
    is_delay = value.option.name == "grow" and "=" not in text
    return _propose(value, f"delay={shown}", "write --grow {}") if is_delay else ""


def _convert_time(text: str) -> str:
    text = text.strip().lower()
    if re.fullmatch(f"(?:{_TIME})+", text):
        return f"{sum(float(number) * _SECONDS[unit[0]] for number, unit in re.findall(_TIME, text)):.15g}"
    clock = re.fullmatch(_CLOCK, text)
    return str(int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + int(clock[3])) if clock else text


def _correct_worker_count(value: Value, text: str) -> str:
    if re.fullmatch(r"\d+(?:,\d+)+", text):
        words = f"set CUDA_VISIBLE_DEVICES={text} to choose devices, and --nproc-per-node {{}}"
        return _propose(value, str(text.count(",") + 1), words)
    if re.fullmatch(r"\d+\s*(?:-|:|\.\.+)\s*\d+", text):
        return "set --nproc-per-node to one number: --nnodes MIN:MAX lets the number of nodes vary"
    grid = re.fullmatch(r"(\d+)\s*[x*]\s*(\d+)", text)
    if grid is None or not _accepts(value, grid[1], "nnodes"):
        return ""
    return _propose(value, grid[2], f"write --nnodes {grid[1]} --nproc-per-node {{}}")


def _correct_mesh(value: Value, text: str) -> str:
    """Return how to write axes that are separated by blanks, or named without a sign of equality."""
    if re.search(r"[^\s,;/]", re.sub(_AXIS, "", text)):
        return ""
    return _propose(value, ",".join(map("=".join, re.findall(_AXIS, text))), "write --mesh {}")


def _correct_number(value: Value, text: str) -> str:
    number = text.rstrip(string.ascii_letters)
    return _propose(value, number, "did you mean {}?") if number != text else ""
