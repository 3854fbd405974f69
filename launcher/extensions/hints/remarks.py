"""Remarks on what meshrun does not read, and was perhaps meant to: misspelt variables, options after the script.

Neither is an error. Other programs may own variables that begin with LAUNCHER_, so only a name that is nearly one of
ours is remarked upon; and a script may have an option that is called like one of meshrun's, so only names that few
scripts use are, if meshrun was not given the option itself. Imported only where there is something to look at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from launcher import extensions
from launcher.config.options.command_line import ParsedArgs
from launcher.config.options.readers import PASSWORD_HINT, Value
from launcher.config.options.table import FAMILIES, ROWS, find_row, name_variable
from launcher.config.scrub import CALL_VARIABLE, END_FILE, PRIVATE
from launcher.extensions.hints.corrections import explain_taken_script
from launcher.model import odd_text
from launcher.model.errors import UsageError, sanitize, suggest

SIMILARITY = 0.8  # two letters exchanged in a name of ten are more alike, GROUP and GROW are less
# What meshrun and its workers read or set that is no option.
_OTHERS = frozenset({CALL_VARIABLE, END_FILE, *PRIVATE}) | {
    f"LAUNCHER_{name}" for name in (
        "BOARD", "CONFIG", "FORK_SERVER", "LOCAL_RANK", "NODE_LABELS", "NODE_LABELS_FILE", "NODE_NAME",
        "PLACE", "POD_GRACE", "RECORDER_SOCKET", "ROUND", "WORKER_DEVICES",
    )
}  # fmt: skip
KNOWN = _OTHERS.union(map(name_variable, extensions.OPTIONS), *(option.variables for option in ROWS))
_UNMISTAKABLE = frozenset({
    "devices-per-worker", "hang-timeout", "heartbeat-timeout", "join-grace",
    "local-ranks-filter", "max-restarts", "nnodes", "nproc-per-node", "rdzv-backend", "rdzv-conf", "rdzv-endpoint",
    "rdzv-id", "rejoin-timeout", "restart-window", "shutdown-timeout", "signals-to-handle",
})  # fmt: skip


def list_remarks(args: ParsedArgs, environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each misspelt variable, and one for options after the script."""
    return [*find_misspelt_variables(environ).values(), *_list_passed_options(args)]


def find_misspelt_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return each variable that is not known and nearly has the name of one that is, with a sentence.

    Its value is not repeated: it may be meant for a secret. An address is Kubernetes' link to a Service of that name.
    """
    unknown = sorted(
        name
        for name, text in environ.items()
        if text and "://" not in text and name.startswith(FAMILIES) and name not in KNOWN
    )
    found = {}
    for name in unknown:
        family = next(family for family in FAMILIES if name.startswith(family))
        suffix = name.removeprefix(family)
        # In torchrun's family only the same name is near: PET_MESH, since only its options have a PET_ variable.
        family = "PET_" if family == "PET_" else "LAUNCHER_"
        candidates = {variable.removeprefix(family): variable for variable in KNOWN if variable.startswith(family)}
        own = f"LAUNCHER_{suffix}"
        question = f"did you mean {own}?" if own in KNOWN else suggest(suffix, candidates, SIMILARITY)
        if question:
            found[name] = f"unknown variable {sanitize(name)}: {question}"
    return found


def _list_passed_options(args: ParsedArgs) -> Iterator[str]:
    flags = dict.fromkeys(word.partition("=")[0] for word in args.script_args if word.startswith("--"))
    names = {flag: flag[2:].replace("_", "-") for flag in flags}
    found = [flag for flag, name in names.items() if name in _UNMISTAKABLE and name not in args.values]
    if found and args.script is not None:
        script = sanitize(args.script)
        which = f"{', '.join(found)} {'is' if len(found) == 1 else 'are'} passed to {script}"
        yield f"{which}: put options of meshrun before the script"


# Variable -> the value that has an effect under torchrun ("": any), and why it has none here.
_UNREAD: Mapping[str, tuple[str, str]] = {
    "TORCHELASTIC_ENABLE_FILE_TIMER": ("1", "meshrun does not serve torch's timers; use --heartbeat-timeout instead"),
    "TORCHELASTIC_HEALTH_CHECK_PORT": ("", "neither meshrun nor the public torch has such a server"),
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": ("", "meshrun does not look for workers blocked in the kernel"),
    "TORCH_ELASTIC_WORKER_IDENTICAL": ("1", "each round assigns the ranks, so nodes do not exchange them"),
}


def list_unread_variables(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each variable that has an effect under torchrun and none here."""
    return [
        f"{name}={text} has no effect: {why}"
        for name, (effective, why) in _UNREAD.items()
        if (text := environ.get(name, "")) and effective in ("", text)
    ]


def remark_on(value: Value) -> list[str]:
    """Return a sentence for a text that can be meant and hardly is: no command, nor what is looked for in lines."""
    is_free = "COMMAND" in value.option.metavar or value.option.metavar.startswith("TEXT,")
    cause = "" if is_free else odd_text.explain_accepted(value.text)
    return [f"{value}: {cause}"] if cause else []


def _has_password(value: Value) -> bool:
    try:
        value.read()
    except UsageError as error:
        return error.hint == PASSWORD_HINT
    return False


def explain_missing_script(args: ParsedArgs) -> str:
    """Return how to give one, or which option has taken it for its value, as in `meshrun --nproc-per-node train.py`."""
    for name, text in args.values.items():
        row = find_row(name)
        value = None if row is None else Value(row, text, row.flag)
        if value is not None and (hint := explain_taken_script(value)):
            return PASSWORD_HINT if _has_password(value) else hint
    return "run meshrun [options] SCRIPT [arguments of the script]; see meshrun -h"
