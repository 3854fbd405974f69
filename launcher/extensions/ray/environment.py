"""What an agent inherits of the actor that starts it, and what the driver and the node add. Pure.

Ray sets variables for its own processes, and a worker of ours that calls `ray.init` must not look like a part of one.
What the user has set, by the job's runtime_env or in the nodes' image, stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from launcher.locality.kubernetes import LABELS

_RAYS = ("RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_CLIENT_MODE")  # they make a process part of a Ray job
# Resource -> what hides its devices from an agent that was granted none: without it a process sees all of them.
_HIDING = {"GPU": "CUDA_VISIBLE_DEVICES", "TPU": "TPU_VISIBLE_CHIPS"}
# By these Ray shows GPUs to a process, one for each maker.
_SHOWING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR")
_THREADS, _BREAKPOINT = "OMP_NUM_THREADS", "PYTHONBREAKPOINT"


def make_agent_environment(
    inherited: Mapping[str, str],
    sent: Mapping[str, str],
    *,
    own: Mapping[str, str],
    bundle: Mapping[str, float],
    granted: Mapping[str, Sequence[str]],
    labels: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment of an agent.

    `inherited`: the actor's; `sent`: from the driver, which counts for more. `own`: what the runtime_env of the job
    sets. `bundle`: what the agent has of its node; `granted`: the ids of devices, by resource. `labels`: of the node.
    """
    found = {name: text for name, text in inherited.items() if name not in _RAYS or name in own}
    if _BREAKPOINT not in own and found.get(_BREAKPOINT, "").startswith("ray."):
        del found[_BREAKPOINT]
    if _THREADS not in own and found.get(_THREADS) == "1":
        del found[_THREADS]  # Ray's guess, from the CPUs of the actor, which has none: the bundle holds them
    for resource, variable in _HIDING.items():
        if not bundle.get(resource) and variable not in own:
            found[variable] = ""
    if granted.get("GPU") and found.keys().isdisjoint(_SHOWING):  # the user may have told Ray to set none
        found[_SHOWING[0]] = ",".join(granted["GPU"])
    found |= sent
    if text := format_labels(labels):
        given = found.get(LABELS, "")  # the user's count for more: the last of two labels does
        if not given.lstrip().startswith("{"):
            found[LABELS] = f"{text}\n{given}".rstrip()
    return found


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels as LAUNCHER_NODE_LABELS takes them. What could be taken for two labels is left out."""
    usable = {key: text for key, text in labels.items() if key and text and not set('",=\n') & {*key, *text}}
    return ",".join(f"{key}={text}" for key, text in sorted(usable.items()))
