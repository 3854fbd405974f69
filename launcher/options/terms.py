"""The terms of a job: the limits and times of the agreement that options set, as fields of its `Settings`.

Only what was given is here; what was not keeps the agreement's own default, which stands there with its reason.
torchrun's names inside --rdzv-conf mean the same as two of the options, and give way to them; its close_timeout is how
long the agent that serves the store stays for the others, once the job has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from launcher.errors import UsageError
from launcher.options import Given
from launcher.options.network import TIMES
from launcher.options.reading import count, one_of, seconds, seconds_of

Term = float | str | bool

# Those that mean something on one machine too.
_ALWAYS = ("restart-window", "min-round-time", "start-timeout")
_CONF = {
    "timeout": "start_timeout_s",
    "join_timeout": "start_timeout_s",
    "last_call_timeout": "join_grace_s",
    "close_timeout": "farewell_s",
}


def _is(yes: str, no: str) -> Callable[[Given], bool]:
    return lambda given: one_of(yes, no)(given) == yes


# option -> field of Settings, and how its text is read
_TERMS: Mapping[str, tuple[str, Callable[[Given], Term]]] = {
    "target-nodes": ("target_nodes", count),
    "start-timeout": ("start_timeout_s", seconds),
    "join-grace": ("join_grace_s", seconds),
    "rejoin-timeout": ("rejoin_timeout_s", seconds),
    "grow": ("growth", one_of("never", "delay", "checkpoint")),
    "grow-delay": ("grow_delay_s", seconds),
    "restart-window": ("restart_window_s", seconds),
    "min-round-time": ("min_round_time_s", seconds),
    "store-outage": ("continues_without_store", _is("continue", "stop")),
    "presence-proof": ("presence_proof", _is("on", "off")),
    "on-finished": ("opens_next_job", _is("next", "exit")),
}
TERMS = tuple(_TERMS)


def terms(given: Mapping[str, Given], conf: Mapping[str, str], nodes: tuple[int, int | None]) -> dict[str, Term]:
    """The settings that these options give: field -> value. `nodes`: the least and the most. Raises UsageError."""
    times = {
        _CONF[key]: seconds_of(conf[key], f"{given['rdzv-conf'].origin}: {key}={conf[key]}")
        for key in TIMES
        if key in conf
    }
    found: dict[str, Term] = {**times, **_read(given, TERMS)}
    least, most = nodes
    target = found.get("target_nodes", 0)
    if target and not least <= float(target) <= (float("inf") if most is None else most):
        bounds = f"{least}:{'' if most is None else most}" if least != most else str(least)
        raise UsageError(f"{given['target-nodes']} is outside of --nnodes {bounds}")
    if found.get("growth", "delay") != "delay" and "grow_delay_s" in found:
        raise UsageError(f"{given['grow-delay']} and {given['grow']} contradict each other", "give one of them")
    return found


def terms_alone(given: Mapping[str, Given]) -> dict[str, Term]:
    """The same on one machine, which waits for nobody. Raises UsageError for rubbish in any of them."""
    _read(given, TERMS)
    return _read(given, _ALWAYS)


def lease_ttl(given: Given) -> float | None:
    """How long a node that is cut off stays a member; None if not given. Raises UsageError."""
    if given.is_default:
        return None
    ttl_s = seconds(given)
    if ttl_s == 0:
        raise UsageError(f"{given}: a lease of no length cannot be kept", "leave it out to run without")
    return ttl_s


def _read(given: Mapping[str, Given], names: Iterable[str]) -> dict[str, Term]:
    rows = [(given[name], *_TERMS[name]) for name in names]
    return {field: read(value) for value, field, read in rows if not value.is_default}


def without_effect_alone(given: Mapping[str, Given]) -> list[Given]:
    """Options that were given and say something about other nodes only."""
    names = (*(name for name in TERMS if name not in _ALWAYS), "interface", "port-range", "rdzv-prefix", "attempt")
    return [given[name] for name in names if not given[name].is_default and given[name].is_flag]
