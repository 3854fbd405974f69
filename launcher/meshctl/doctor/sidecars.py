"""Checks of a run's surroundings: proxies between its nodes, and the pod's grace period.

A service mesh puts a proxy beside every pod, and the traffic between pods goes through it. That suits web servers;
NCCL, gloo and JAX open connections to undeclared ports, and need them unmodified. The ports are those of Istio
(istio.io, "Application requirements") and Linkerd (linkerd.io, "Protocol detection" and the proxy's configuration);
both must be open, since either alone may be another program's.
"""

from __future__ import annotations

from collections.abc import Iterator

from launcher.meshctl.doctor.findings import Finding
from launcher.meshctl.doctor.machine import MachineInfo, PlannedRun
from launcher.model.text import format_number

POD_GRACE = "LAUNCHER_POD_GRACE"
"""A pod cannot read its terminationGracePeriodSeconds; the author of the one can set the other."""
POD_GRACE_DEFAULT_S = 30.0
POD_GRACE_MARGIN_S = 15.0  # for what comes after the workers: their last output, the store, the runtime's own steps
IN_KUBERNETES = "KUBERNETES_SERVICE_HOST"

# Its name, the ports that it listens on for traffic in and out, the prefix of its own variables, the remedy.
_SIDECARS = (
    ("Istio", (15001, 15006), ("ISTIO_META_",), 'the label sidecar.istio.io/inject: "false" on the pod'),
    ("Linkerd", (4140, 4143), ("LINKERD2_PROXY_",), "the annotation linkerd.io/inject: disabled on the pod"),
    ("Envoy", (9901, 15001), (), "run the pod without it"),
)
_SIDECAR_HARM = (
    "it takes over connections between pods: those of NCCL, gloo and JAX are cut, refused or slow, and none works "
    "before it is ready or after it has gone"
)


def check_sidecar(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    for name, ports, prefixes, remedy in _SIDECARS:
        variables = sorted(variable for variable in run.environ if variable.startswith(prefixes))
        if machine.listening_ports.issuperset(ports):
            sign = f"it listens on ports {' and '.join(map(str, ports))}"
        elif variables:
            sign = f"{variables[0]} is set"
        else:
            continue
        yield Finding("sidecar", "hurt", f"a proxy of {name} is in this pod: {sign}", _SIDECAR_HARM, remedy)


def check_proxy_variables(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    """JAX warns of such variables (jax/_src/distributed.py, 0.10.2)."""
    found = sorted(name for name, value in run.environ.items() if name.lower().endswith("_proxy") and value)
    if all(name.lower() == "no_proxy" for name in found):
        return
    uses_jax = "jax" in run.frameworks
    yield Finding(
        "proxy-variables",
        "hurt" if uses_jax else "note",
        f"workers inherit {', '.join(found)}",
        "JAX warns that its start may hang where such variables are set, and others may ask the proxy for their peers; "
        "meshrun itself uses no proxy to reach its store",
        "unset them for the job, or name the nodes in NO_PROXY",
    )


def check_pod_grace(machine: MachineInfo, run: PlannedRun) -> Iterator[Finding]:
    ours, text = run.shutdown_timeout_s, run.environ.get(POD_GRACE, "")
    if not text:
        if run.environ.get(IN_KUBERNETES) and ours + POD_GRACE_MARGIN_S > POD_GRACE_DEFAULT_S:
            yield Finding(
                "pod-grace",
                "note",
                f"this is a pod, and nothing in it says what its grace is; {format_number(POD_GRACE_DEFAULT_S)} s "
                "are usual",
                f"workers have {format_number(ours)} s to stop (--shutdown-timeout), if the pod is not killed before",
                f"terminationGracePeriodSeconds: {format_number(ours + POD_GRACE_MARGIN_S)} in the pod; say so to this "
                f"command by {POD_GRACE}",
            )
        return
    try:
        grace_s = float(text)
    except ValueError:
        yield Finding("pod-grace", "note", f"{POD_GRACE}={text!r} is no number of seconds", "", "write 45, say")
        return
    if grace_s < ours + POD_GRACE_MARGIN_S:
        late = "before the workers' time is over" if grace_s <= ours else "hardly later"
        yield Finding(
            "pod-grace",
            "hurt" if grace_s <= ours else "note",
            f"the pod has {format_number(grace_s)} s to stop ({POD_GRACE}), "
            f"workers have {format_number(ours)} s (--shutdown-timeout)",
            f"the pod is killed {late}: a checkpoint may be half written, and nobody says why the node has gone",
            f"terminationGracePeriodSeconds: {format_number(ours + POD_GRACE_MARGIN_S)}, or a shorter "
            "--shutdown-timeout",
        )


CHECKS = (check_sidecar, check_proxy_variables, check_pod_grace)
