"""The form of a variable that makes devices visible: whether every entry can name a device, before any is looked for.

A runtime does not report a list that it cannot read. CUDA reads "0-3" and "0;1" as GPU 0, and "all", "cuda:0" or a
variable that no shell has replaced as no GPU; a script then trains on one GPU, or on the CPU, and ends with 0. So a
list is refused unless it can be meant: numbers, ids, -1 behind which nothing is visible according to CUDA's
documentation, or one of the words by which a scheduler or a container runtime says "none".

Imported only for a value that is more than distinct numbers and commas, or where there is a driver. Which entries exist
is the detectors' question.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from launcher.hardware.accelerators.contract import Inventory
from launcher.model import odd_text
from launcher.model.errors import sanitize

HIDING_WORDS = frozenset({"", "-1", "10000", "NoDevFiles", "none", "void"})
"""Values that hide every device on purpose: empty and -1 of the user's; NoDevFiles of Slurm for a job without a GPU;
10000, and `none`, of HTCondor for the same (ENVIRONMENT_VALUE_FOR_UnAssignedGPUs); none and void of NVIDIA's container
runtime, from whose variable scripts copy them. Each as it is written there: None is what Python makes of no value."""

_GPU_ID = "GPU-[0-9A-Fa-f][0-9A-Fa-f-]{0,35}"
_MIG_ID = f"MIG-(?:{_GPU_ID}/[0-9]+/[0-9]+|[0-9A-Fa-f][0-9A-Fa-f-]{{0,35}})"
_BLANKS = " \t"


class _Form(Struct, frozen=True):
    entry: str
    """A regular expression for one entry."""
    noun: str = "GPU"
    names: str = "the number or the id of a GPU"
    mixes_kinds: bool = True
    """Whether numbers and ids may stand in one list."""
    allows_blanks: bool = True
    allows_last_comma: bool = True
    is_distinct: bool = True
    """Whether a device that is named twice hides others."""
    words: frozenset[str] = HIDING_WORDS


_NUMBER = "the number of a device"
_FORMS: Mapping[str, _Form] = {
    "CUDA_VISIBLE_DEVICES": _Form(
        rf"\+?[0-9]+|{_GPU_ID}|{_MIG_ID}", mixes_kinds=False
    ),
    "HIP_VISIBLE_DEVICES": _Form(f"0|[1-9][0-9]*|{_GPU_ID}", allows_blanks=False),
    "ROCR_VISIBLE_DEVICES": _Form(rf"[+-]?(?:0[Xx][0-9A-Fa-f]+|[0-9]+)|(?i:{_GPU_ID})"),
    "ZE_AFFINITY_MASK": _Form(
        "[0-9]+", names=_NUMBER, is_distinct=False, words=HIDING_WORDS | {"default"},
    ),
    "TPU_VISIBLE_CHIPS": _Form("[0-9]+", "TPU chip", _NUMBER, allows_last_comma=False, words=frozenset({""})),
    "TPU_VISIBLE_DEVICES": _Form("[0-9]+", "TPU chip", _NUMBER, allows_last_comma=False, words=frozenset({""})),
}  # fmt: skip


DECLARED = _Form(r"[^\s\"'`$\[\](){};|]+", "device", "the name of one device", words=frozenset({""}))
"""Of the variable of --visible-env: its runtime is unknown, but no entry has quotes, brackets, blanks or a dollar."""


def hides_all(value: str) -> bool:
    """Whether the value hides every device on purpose. "-1,0" does: nothing behind -1 is visible."""
    return value.strip(_BLANKS) in HIDING_WORDS or value.split(",")[0].strip(_BLANKS) == "-1"


def examine(environ: Mapping[str, str], variables: Iterable[str]) -> Inventory | None:
    """Return the first mistake in the form of these variables, as an inventory of no device; None without one."""
    found = (find_mistake(variable, environ.get(variable, "")) for variable in variables)
    return next(filter(None, found), None)


def find_mistake(variable: str, value: str, form: _Form | None = None) -> Inventory | None:
    """Return what is wrong with the form of a value, and what to write instead; None if it can be meant.

    `form` None: that of the variable, and every value is right for one that is not known.
    """
    form = form or _FORMS.get(variable)
    if form is None or value.strip(_BLANKS) in form.words:
        return None
    setting = f"{variable}={sanitize(value if value == value.strip() else repr(value))}"
    seen: set[str] = set()
    kinds: set[str] = set()
    entries = value.split(",")
    while form.allows_last_comma and len(entries) > 1 and not entries[-1].strip(_BLANKS):
        entries.pop()  # the runtime stops there, and nothing is behind it
    for entry in entries:
        text = entry.strip(_BLANKS) if form.allows_blanks else entry
        if text == "-1" and "-1" in form.words:
            return None  # documented: an end of the list, behind which a user may keep what is hidden
        if not re.fullmatch(form.entry, text):
            what = f"{sanitize(repr(entry))} is not {form.names}" if text else "an entry is empty"
            return _refuse(f"{setting}: {what}", _suggest(form, variable, value))
        key = str(int(text)) if text.isdecimal() and len(text) < 19 else text
        if form.is_distinct and key in seen:
            return _refuse(f"{setting} names {sanitize(text)} twice", "list each device once")
        kinds.add("number" if text.lstrip("+").isdecimal() else text[:4])
        if len(kinds) > 1 and not form.mixes_kinds:
            what = f"{sanitize(text)} is of another kind than the entries before it"
            return _refuse(f"{setting}: {what}", "list all by number, or all by id")
        seen.add(key)
    return None


def _refuse(sentence: str, hint: str) -> Inventory:
    return Inventory((), sentence, sentence, hint=hint)


_ALL = frozenset(
    {"*", "all", "any", "auto", "cuda", "default", "everything", "gpu", "gpus", "max", "on", "true", "yes"}
)
_NONE = frozenset(
    {"cpu", "disabled", "empty", "false", "n/a", "nil", "no", "nodevfiles", "none", "nogpu", "null", "off", "void"}
)


def _suggest(form: _Form, variable: str, value: str) -> str:
    """Return the next step, which begins with a verb."""
    bare = value.strip().strip("\"'`")
    if (cause := odd_text.explain(value)) and (bare == value.strip() or bare[:1].isdigit()):
        return cause
    word = value.strip(" \t\r\n\"'`,[](){}").casefold()
    if word in _ALL:
        return f"unset {variable}: without it every {form.noun} is visible"
    if word in _NONE:
        return f"leave the value of {variable} empty to hide every {form.noun}, or unset it to show all"
    return f"list numbers separated by commas, as in {variable}=0,1, or unset it to show every {form.noun}"
