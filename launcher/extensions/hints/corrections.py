"""How to write a value that was refused: a time with units, a range with a dash, a list of devices where a number
belongs, axes of a mesh without commas.

What is proposed has been read by the option's own reader. It is loaded once a value was refused; what that reader says
is the hint where none of these functions knows the text.
"""

from __future__ import annotations

import re

from launcher.config.options.readers import Value
from launcher.config.options.table import find_row
from launcher.model import odd_text
from launcher.model.errors import UsageError, sanitize

_TEXT_MAX = 100
_WITH_TIMES = ("hang-timeout", "grow", "rdzv-conf")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_UNIT = "ms|s|sec|secs|second|seconds|m|min|mins|minute|minutes|h|hr|hrs|hour|hours|d|day|days"
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_TIME = rf"({_NUMBER})\s*({_UNIT})(?![a-z])\s*"
_NUMBERS = dict(zip(("one", "two", "three", "four", "five", "six", "seven", "eight"), "12345678", strict=True))
_OF_WORDS = {
    "max-restarts": dict.fromkeys(("always", "forever", "inf", "infinite", "unlimited", "-1"), "write a large number"),
    "nnodes": dict.fromkeys(("all", "any", "auto", "max", "*"), "write 1: to use every node that joins"),
    "rdzv-backend": dict.fromkeys(("nccl", "gloo", "mpi"), "leave it out: init_process_group() takes that backend"),
}
_CLOCK = r"(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})"
_AXIS = r"(?:(?<=\d)\s*x\s*)?([A-Za-z_]+)\s*[=:]?\s*(\d{1,9}|\*)"


def choose_hint(value: Value, usual: str | None) -> str:
    """Return the next step for a text that its option refuses, which has a `usual` one; "" if there is none."""
    return explain_taken_script(value) or correct(value) or usual or odd_text.explain_empty(value.text)


def explain_taken_script(value: Value) -> str:
    """Return how to write the option whose value was left out, so that it took the script for it; "" otherwise."""
    if not (value.is_flag and value.text.endswith(".py")):
        return ""
    script, metavar = sanitize(value.text), value.option.metavar.partition("|")[0]
    shown = f"{script} without quotes" if " " in script else f"{metavar} {script}"
    return f"write {value.origin} {shown}: the option took {script} as its value"


def correct(value: Value) -> str:
    """Return the next step for a text that its option refuses; "" if it shows none."""
    if cause := odd_text.explain(value.text):
        return cause
    option, text = value.option, value.text.strip()
    if len(text) > _TEXT_MAX:
        return ""
    if option.metavar == "SECONDS" or option.name in _WITH_TIMES:
        return _correct_times(value, text)
    if step := _OF_WORDS.get(option.name, {}).get(text.lower()):
        return step
    if option.name == "nnodes" and (bounds := re.fullmatch(r"(\d+)\s*(?:[-:,~/\s]|\.\.+|to)\s*(\d+)", text)):
        return _propose(value, ":".join(sorted(bounds.groups(), key=int)), "write {}")
    if option.name == "nproc-per-node" and (step := _correct_worker_count(value, text)):
        return step
    if option.name == "mesh":
        return _correct_mesh(value, text)
    if option.name == "devices":
        written = re.sub("^(?:cuda|gpu)", "nvidia", text.replace("=", ":")).removesuffix(":0")
        devices = re.fullmatch(r"\d+(?:,\d+)*", text)
        return f"set CUDA_VISIBLE_DEVICES={text}" if devices else _propose(value, written, "write {}")
    if option.metavar in ("ID", "NAME") or (option.metavar.endswith(",...") and "|" not in option.metavar):
        listed = re.sub(r"[\s,;]+", ",", text.strip(" ,;"))
        return _propose(value, listed if "," in option.metavar else text.replace("/", "-"), "write {}")
    return _correct_number(value, text) if option.metavar.partition("|")[0] in ("N", "PORT", "SETS") else ""


def correct_host(value: Value, name: str) -> str:
    """Return the next step for a text that cannot be the `name` of a host in this value."""
    flag, bare = value.option.flag, name.rpartition("://")[2].rstrip("/").replace(" ", ":")
    host, _, port = bare.rpartition(":")
    if host and port.isdecimal() and value.option.name == "master-addr":
        return f"write {flag} {host} --master-port {port}"
    if bare != name:
        return f"write {flag} {bare}"
    return odd_text.explain(value.text) or "write the name of a host, or an address such as 10.0.0.1"


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
    ways = [(shown, "write {}, in seconds"), (f"600,{shown}", "write for example {}")]
    if value.option.name == "grow" and "=" not in text:
        ways = [(f"delay={shown}", "write --grow {}")]
    is_word = value.option.metavar == "SECONDS" and not re.search(r"\d", text)
    otherwise = "write a number, such as 60" if is_word else ""
    return next(filter(None, (_propose(value, *way) for way in ways)), otherwise)


def _convert_time(text: str) -> str:
    text = text.strip().lower()
    if re.fullmatch(f"(?:{_TIME})+", text):
        times = [float(number) * (_SECONDS.get(unit) or _SECONDS[unit[0]]) for number, unit in re.findall(_TIME, text)]
        return f"{sum(times):.15g}"
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
    """Return how to write axes that are separated by blanks, or named without a sign of equality, or not at all."""
    if re.fullmatch(r"\d+(?:\s*[x,* ]\s*\d+){0,2}", text):
        sizes = re.findall(r"\d+", text)
        text = " ".join(name + size for name, size in zip(("pp", "dp", "tp")[-len(sizes) :], sizes, strict=True))
    if re.search(r"[^\s,;/:\[\](){}]", re.sub(_AXIS, "", text)):
        return ""
    return _propose(value, ",".join(map("=".join, re.findall(_AXIS, text))), "write --mesh {}")


def _correct_number(value: Value, text: str) -> str:
    numbers = re.findall(r"\d+", _NUMBERS.get(text.lower(), re.sub(r"\.0*$", "", text)))
    return _propose(value, numbers[0], "did you mean {}?") if len(numbers) == 1 and "-" not in text else ""
