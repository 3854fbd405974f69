"""The terms of a job: the limits and times of the agreement that options set, as fields of its `Settings`.

Only what was given is here; what was not keeps the agreement's own default, which stands there with its reason.
torchrun's names inside --rdzv-conf mean the same as two of the options, and give way to them; its close_timeout is how
long the agent that serves the store stays for the others, once the job has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from launcher.errors import UsageError
from launcher.options import Value
from launcher.options.network import TIME_KEYS
from launcher.options.reading import make_choice_parser, parse_count, parse_seconds, parse_seconds_text

Setting = float | str | bool

# Those that mean something on one machine too.
_STANDALONE_OPTIONS = ("restart-window", "min-round-time", "start-timeout")
_CONF_FIELDS = {
    "timeout": "start_timeout_s",
    "join_timeout": "start_timeout_s",
    "last_call_timeout": "join_grace_s",
    "close_timeout": "farewell_s",
}


def _make_bool_parser(true_word: str, false_word: str) -> Callable[[Value], bool]:
    return lambda given: make_choice_parser(true_word, false_word)(given) == true_word


# option -> field of Settings, and how its text is read
_SETTINGS: Mapping[str, tuple[str, Callable[[Value], Setting]]] = {
    "target-nodes": ("target_nodes", parse_count),
    "start-timeout": ("start_timeout_s", parse_seconds),
    "join-grace": ("join_grace_s", parse_seconds),
    "rejoin-timeout": ("rejoin_timeout_s", parse_seconds),
    "grow": ("growth", make_choice_parser("never", "delay", "checkpoint")),
    "grow-delay": ("grow_delay_s", parse_seconds),
    "restart-window": ("restart_window_s", parse_seconds),
    "min-round-time": ("min_round_time_s", parse_seconds),
    "store-outage": ("continues_without_store", _make_bool_parser("continue", "stop")),
    "presence-proof": ("presence_proof", _make_bool_parser("on", "off")),
    "on-finished": ("opens_next_job", _make_bool_parser("next", "exit")),
}
SETTINGS_OPTIONS = tuple(_SETTINGS)


def parse_settings(
    values: Mapping[str, Value], conf: Mapping[str, str], nodes: tuple[int, int | None]
) -> dict[str, Setting]:
    """The settings that these options give: field -> value. `nodes`: the least and the most. Raises UsageError."""
    times = {
        _CONF_FIELDS[key]: parse_seconds_text(conf[key], f"{values['rdzv-conf'].origin}: {key}={conf[key]}")
        for key in TIME_KEYS
        if key in conf
    }
    found: dict[str, Setting] = {**times, **_parse_options(values, SETTINGS_OPTIONS)}
    least, most = nodes
    target = found.get("target_nodes", 0)
    if target and not least <= float(target) <= (float("inf") if most is None else most):
        bounds = f"{least}:{'' if most is None else most}" if least != most else str(least)
        raise UsageError(f"{values['target-nodes']} is outside of --nnodes {bounds}")
    if found.get("growth", "delay") != "delay" and "grow_delay_s" in found:
        raise UsageError(f"{values['grow-delay']} and {values['grow']} contradict each other", "give one of them")
    return found


def parse_standalone_settings(values: Mapping[str, Value]) -> dict[str, Setting]:
    """The same on one machine, which waits for nobody. Raises UsageError for rubbish in any of them."""
    _parse_options(values, SETTINGS_OPTIONS)
    return _parse_options(values, _STANDALONE_OPTIONS)


def parse_lease_ttl(value: Value) -> float | None:
    """How long a node that is cut off stays a member; None if not given. Raises UsageError."""
    if value.is_default:
        return None
    ttl_s = parse_seconds(value)
    if ttl_s == 0:
        raise UsageError(f"{value}: a lease of no length cannot be kept", "leave it out to run without")
    return ttl_s


def _parse_options(values: Mapping[str, Value], names: Iterable[str]) -> dict[str, Setting]:
    rows = [(values[name], *_SETTINGS[name]) for name in names]
    return {field: read(value) for value, field, read in rows if not value.is_default}


def list_cluster_options(values: Mapping[str, Value]) -> list[Value]:
    """Options that were given and say something about other nodes only."""
    names = (
        *(name for name in SETTINGS_OPTIONS if name not in _STANDALONE_OPTIONS),
        "interface",
        "port-range",
        "rdzv-prefix",
        "attempt",
    )
    return [values[name] for name in names if not values[name].is_default and values[name].is_flag]
