"""The options that `meshrun-ray` has beside all those of meshrun, and the command line of its agents.

Rows are those of meshrun's own table, so that both are parsed in one go: an option of either kind may stand anywhere
before the script. The words for agents are made anew from the parsed options; a few are the driver's to set.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from launcher.config.options.command_line import ParsedArgs
from launcher.config.options.readers import Option, Value, parse_count, parse_text
from launcher.config.options.table import BY_NAME, SETTING_BY_NAME, find_row
from launcher.config.scrub import END_FILE
from launcher.locality.kubernetes import LABELS
from launcher.model.errors import UsageError, sanitize

OPTIONS: tuple[Option, ...] = (
    Option("ours", "bundle", "ray", "NAME=AMOUNT,...", parse_text, "the devices of --nproc-per-node",
           "Ray resources that each agent reserves on its node, such as GPU=8,CPU=8."),
    Option("ours", "label-selector", "ray", "KEY=VALUE,...", parse_text, "",
           "Labels of the Ray nodes to use; VALUE may be !v or in(a,b), as in Ray."),
    Option("ours", "spares", "ray", "N", parse_count, "0",
           "Number of nodes to reserve in addition to the maximum of --nnodes."),
    Option("ours", "export", "ray", "NAME,...", parse_text, "",
           "Variables to pass to agents and workers, in addition to LAUNCHER_ and PET_ ones."),
    Option("ours", "address", "ray", "auto|HOST:PORT", parse_text, "auto", "Address of the Ray cluster."),
)  # fmt: skip
STOP_WAIT_VARIABLE = "RAY_JOB_STOP_WAIT_TIME_S"
"""How long Ray waits from SIGTERM to SIGKILL of a job's driver (dashboard/modules/job/job_supervisor.py)."""
STOP_WAIT_S = 3.0  # its default
STOP_MARGIN_S = 1.0  # from the end of the workers to the end of the driver
GCS_THREAD = "ray gcs"  # it is left at the end only where a call of Ray's does not return
_AMOUNT_MAX = 1e9
# What the driver determines for all agents: where they meet, who they are, and where each of them is.
_DRIVERS = (
    "standalone", "rdzv-backend", "rdzv-endpoint", "rdzv-conf", "node-rank", "node-name", "master-addr", "master-port",
    "local-addr",
)  # fmt: skip

# A file here, what the driver draws itself, and what is true of the driver's node alone.
_NEVER_SENT = (END_FILE, "LAUNCHER_STORE_TOKEN", LABELS)


class RayOptions(Struct, frozen=True, kw_only=True):
    """The options that only a job on Ray has."""

    bundle: Mapping[str, float] | None
    """Resource to amount, None if --nproc-per-node decides."""
    label_selector: Mapping[str, str]
    """Label to condition."""
    spares: int
    export: tuple[str, ...]
    """Names of variables."""
    address: str


def split(args: ParsedArgs, environ: Mapping[str, str]) -> tuple[RayOptions, ParsedArgs]:
    """Return the options of Ray, and the rest, which is for agents. Raises UsageError."""
    own = {option.name: _find_value(option, args.values) for option in OPTIONS}
    options = RayOptions(
        bundle=None if own["bundle"].is_default else _parse_bundle(own["bundle"]),
        label_selector=_parse_selector(own["label-selector"]),
        spares=own["spares"].read(),
        export=_parse_names(own["export"]),
        address=_parse_address(own["address"], environ),
    )
    rest = {name: text for name, text in args.values.items() if name not in own}
    for name in _DRIVERS:
        if name in rest:
            raise UsageError(f"--{name} cannot be set here: the driver decides where nodes meet", f"remove --{name}")
    return options, replace(args, values=rest)


def _find_value(option: Option, flags: Mapping[str, str]) -> Value:
    text = flags.get(option.name)
    return Value(option, option.default, "default") if text is None else Value(option, text, option.flag)


def _parse_bundle(value: Value) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in value.text.split(","):
        name, equals, text = part.strip().partition("=")
        try:
            amount = float(text)
        except ValueError:
            amount = 0.0
        if not name or not equals or not 0 < amount <= _AMOUNT_MAX:
            raise UsageError(f"{value}: {sanitize(part)!r} is not NAME=AMOUNT", "use for example --bundle GPU=8,CPU=8")
        if name in found:
            raise UsageError(f"{value} names {sanitize(name)} twice")
        if name in ("GPU", "TPU") and amount != int(amount):
            raise UsageError(f"{value}: an agent cannot share a {name}", f"write {name}={max(1, round(amount))}")
        found[name] = amount
    return found


def _parse_selector(value: Value) -> dict[str, str]:
    """Parse KEY=VALUE,...: a comma inside parentheses, as in in(a,b), separates nothing."""
    found: dict[str, str] = {}
    for part in re.split(r",(?![^()]*\))", value.text) if value.text.strip() else ():
        key, equals, condition = part.strip().partition("=")
        if not key or not equals or not condition:
            raise UsageError(f"{value}: {sanitize(part)!r} is not KEY=VALUE", "use for example ray.io/market-type=spot")
        if key in found:
            raise UsageError(f"{value} names {sanitize(key)} twice", f"write {key}=in(A,B) for either of two")
        found[key] = condition
    return found


def _parse_names(value: Value) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.text.split(",") if name.strip()))
    for name in names:
        if "=" in name:
            sentence = f"{value}: {sanitize(name)} is not the name of a variable"
            raise UsageError(sentence, "set the variable in the driver's environment, and give its name alone")
    return names


def _parse_address(value: Value, environ: Mapping[str, str]) -> str:
    text, origin = value.text.strip() or "auto", str(value)
    if text == "auto" and environ.get("RAY_ADDRESS"):
        text, origin = environ["RAY_ADDRESS"], f"RAY_ADDRESS={sanitize(environ['RAY_ADDRESS'])}"
    if text.startswith("ray://"):
        raise UsageError(
            f"{origin}: through Ray Client the driver, which serves the job's store, is outside of the cluster",
            "start it inside: ray job submit -- meshrun-ray ..., or on a node of the cluster with --address auto",
        )
    if text.startswith(("http://", "https://")):
        raise UsageError(
            f"{origin} is the address for ray job, not the cluster's", "run ray job submit -- meshrun-ray ..."
        )
    return text


def make_agent_words(args: ParsedArgs, more: Mapping[str, str]) -> list[str]:
    """Return the words of an agent: its options, those of `more` where they are not given, the script and the rest."""
    words = []
    for name, text in {**more, **args.values}.items():
        row = find_row(name)
        words.append(f"--{name}={text}" if row is not None and row.takes_value else f"--{name}")
    return [*words, *([] if args.script is None else ["--", args.script]), *args.script_args]


def find_run_id(environ: Mapping[str, str]) -> str:
    """Return the submission id of the Ray job whose entrypoint this is; "" outside of one.

    Ray's own job ids begin anew with every cluster, and would name another run in a store that clusters share.
    """
    try:
        metadata = json.loads(environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}"))["metadata"]
        found = metadata["job_submission_id"]
    except (ValueError, LookupError, TypeError):
        return ""
    return found if isinstance(found, str) and found.isprintable() else ""


def find_stop_wait_s(environ: Mapping[str, str]) -> float:
    """Return how long `ray job stop` waits for this process after SIGTERM."""
    try:
        wait_s = float(environ.get(STOP_WAIT_VARIABLE, STOP_WAIT_S))
    except ValueError:
        return STOP_WAIT_S
    return wait_s if 0 <= wait_s < _AMOUNT_MAX else STOP_WAIT_S


def select_variables(environ: Mapping[str, str], export: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables of the driver for its agents, and sentences on those that do not exist.

    Variables of what the driver determines are left out.
    """
    rows = (*(BY_NAME[name] for name in _DRIVERS), SETTING_BY_NAME["store-port"])
    drivers = {variable for row in rows for variable in row.variables}
    found = {name: text for name, text in environ.items() if name.startswith(("LAUNCHER_", "PET_"))}
    found = {name: text for name, text in found.items() if name not in drivers and not name.startswith(_NEVER_SENT)}
    missing = [name for name in export if name not in environ]
    found |= {name: environ[name] for name in export if name in environ}
    return found, [f"--export {sanitize(name)}: the driver has no such variable" for name in missing]
