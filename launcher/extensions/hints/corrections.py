"""How to write a value that was refused: a time with units, a range with a dash, a list of devices where a number
belongs, axes of a mesh without commas.

Functions of the text. They are loaded once a value was refused; what its reader says is the hint where none of them
knows the text.
"""

from __future__ import annotations

import re
import string

from launcher.model import odd_text

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TIME = r"(\d+(?:\.\d+)?)\s*([smhd])[a-z]*\s*"
_WITH_TIMES = ("hang-timeout", "grow", "rdzv-conf")
_AXIS = r"\s*([A-Za-z_]\w*?)\s*[=:]?\s*(\d+|\*)\s*(?:[,;x/]|$|(?=\s|[A-Za-z]))"


def correct(option: str, metavar: str, text: str) -> str:
    """Return the next step for a text that this option refuses; "" if it shows none."""
    if cause := odd_text.explain(text):
        return cause
    text = text.strip()
    if metavar == "SECONDS" or option in _WITH_TIMES:
        return _correct_times(text)
    if option == "nnodes":
        bounds = re.fullmatch(r"(\d+)\s*(?:-|\.\.+|,|~|/|to)\s*(\d+)", text)
        return f"write {bounds[1]}:{bounds[2]}" if bounds else ""
    if option == "nproc-per-node":
        return _correct_worker_count(text) or _correct_number(text)
    if option == "mesh":
        return _correct_mesh(text)
    return _correct_number(text) if metavar.partition("|")[0] in ("N", "PORT", "SETS") else ""


def _correct_times(text: str) -> str:
    """Return "write 600" for 10m, "write 5400,start=60" for 1h30min,start=1m."""
    written = ",".join(re.sub(r"[^=]*$", lambda found: _convert_time(found[0]), part) for part in text.split(","))
    return f"write {written}, in seconds" if written != text else ""


def _convert_time(text: str) -> str:
    text = text.strip().lower()
    if re.fullmatch(f"(?:{_TIME})+", text):
        return f"{sum(float(number) * _UNITS[unit] for number, unit in re.findall(_TIME, text)):.15g}"
    clock = re.fullmatch(r"(?:(\d+):)?(\d+):(\d+)", text)
    return str(int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + int(clock[3])) if clock else text


def _correct_worker_count(text: str) -> str:
    if re.fullmatch(r"\d+(?:,\d+)+", text):
        return f"set CUDA_VISIBLE_DEVICES={text} to choose devices, and --nproc-per-node {text.count(',') + 1}"
    if re.fullmatch(r"\d+\s*(?:-|:|\.\.+)\s*\d+", text):
        return "set --nproc-per-node to one number: --nnodes MIN:MAX lets the number of nodes vary"
    grid = re.fullmatch(r"(\d+)\s*[x*]\s*(\d+)", text)
    return f"write --nnodes {grid[1]} --nproc-per-node {grid[2]}" if grid else ""


def _correct_mesh(text: str) -> str:
    """Return how to write axes that are separated by blanks, or named without a sign of equality."""
    axes = ",".join(f"{name}={size}" for name, size in re.findall(_AXIS, text))
    return f"write --mesh {axes}" if axes != text and re.fullmatch(f"(?:{_AXIS})+", text) else ""


def _correct_number(text: str) -> str:
    number = text.rstrip(string.ascii_letters)
    return f"did you mean {number}?" if number.isdigit() and number != text else ""
