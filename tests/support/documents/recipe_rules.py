"""What breaks jobs on Kubernetes in practice, as rules over the pods of a recipe.

A rule takes a pod, with what its controller adds, and gives a sentence for each thing that is wrong. Most of it comes
down to two facts: an agent's exit code says whether its node or the whole job is meant (docs/reference/exit-codes.md),
and pods must find each other, be stopped and be replaced one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from launcher.config import scrub
from launcher.locality.kubernetes import NODE_NAMES
from tests.support.documents.recipes import Document, Pod

MARGIN_S = 15.0  # from the end of the agent's own grace to Kubernetes' SIGKILL
ATTEMPTS = 10  # of the whole job, at least, before Kubernetes gives up
MADE_BY_SCRIPT = {"ca.crt", "tls.crt", "tls.key"}  # etcd-certificates.sh, and what cert-manager would write
REASONS = ("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")


def starts_as_a_list(pod: Pod) -> Iterator[str]:
    if pod.words[0] != "meshrun" and pod.words[:3] != ["python", "-m", "meshrun"]:
        yield f"{pod.words[0]} stands between Kubernetes and the agent, and does not pass SIGTERM on"


def has_shared_memory(pod: Pod) -> Iterator[str]:
    mounts = {mount["mountPath"]: mount["name"] for mount in pod.container.get("volumeMounts", [])}
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    directory = volumes.get(mounts.get("/dev/shm", ""), {}).get("emptyDir")
    if directory is None or directory.get("medium") != "Memory" or "sizeLimit" not in directory:
        yield "/dev/shm has 64 MB: no emptyDir of medium Memory"


def has_time_to_stop(pod: Pod) -> Iterator[str]:
    wanted_s = pod.config.shutdown.shutdown_timeout_s + MARGIN_S
    if pod.spec.get("terminationGracePeriodSeconds") != wanted_s:
        yield f"terminationGracePeriodSeconds is not {wanted_s:g}"


def keeps_secrets_in_files(pod: Pod) -> Iterator[str]:
    config, variables = pod.config, {each["name"]: each.get("value") for each in pod.container.get("env", [])}
    for name in scrub.NAMES:
        if name in variables:
            yield f"{name} stands in the manifest or in a variable"
    network = config.rendezvous.network
    files = {name: value for name, value in variables.items() if name.endswith("_FILE") and value}
    if network is not None:
        named = {"cacert": network.ca_file, "cert": network.cert_file, "key": network.key_file}
        files |= {name: value for name, value in named.items() if value}
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    secrets = {
        mount["mountPath"]: volumes[mount["name"]]["secret"]["secretName"]
        for mount in pod.container.get("volumeMounts", [])
        if "secret" in volumes.get(mount["name"], {}) and mount.get("readOnly")
    }
    for name, path in files.items():
        folder, _, file = path.rpartition("/")
        if folder not in secrets:
            yield f"{name}: {path} is not in a Secret that is mounted to be read only"
        elif secrets[folder].endswith("-tls") and file not in MADE_BY_SCRIPT:
            yield f"{name}: {file} is not in the Secret {secrets[folder]}"


def meets_the_others(pod: Pod) -> Iterator[str]:
    config = pod.config
    for note in config.notes:
        yield f"the agent says: {note}"
    if pod.count == 1:
        return
    if config.rendezvous.network is None or config.placement.nodes_max != pod.count:
        yield f"{pod.count} pods are a job of {config.placement.nodes_max} nodes"
        return
    if config.rendezvous.network.backend == "etcd":
        if not config.rendezvous.network.uses_tls:
            yield "it talks to etcd without TLS"
        return
    host = config.rendezvous.network.endpoints[0].partition(":")[0]
    if host not in pod.names:
        yield f"{host} is no name that a headless Service publishes before pods are ready"
    if config.rendezvous.node_rank is not None and config.rendezvous.node_rank != pod.index:
        yield f"pod {pod.index} is told node rank {config.rendezvous.node_rank}"
    if (host.partition(".")[0] == pod.hostname) != (pod.index == 0):
        yield f"the store would be at {host}, which is not pod 0"
    if pod.kind == "PyTorchJob" and "readinessProbe" in pod.container:
        yield "the operator's Services hide a pod until its probe succeeds"


def knows_its_machine(pod: Pod) -> Iterator[str]:
    """Where a machine stands is in its labels; an account that may read them is another matter (node-labels.yaml)."""
    sources = {each["name"]: each.get("valueFrom", {}) for each in pod.container.get("env", [])}
    if pod.count > 1 and sources.get(NODE_NAMES[-1], {}).get("fieldRef", {}).get("fieldPath") != "spec.nodeName":
        yield f"{NODE_NAMES[-1]} is not spec.nodeName: a quarantine would follow the pod"


def tells_a_later_attempt(pod: Pod) -> Iterator[str]:
    sources = {each["name"]: each.get("valueFrom", {}).get("fieldRef", {}) for each in pod.container.get("env", [])}
    field = "metadata.annotations['jobset.sigs.k8s.io/execution-attempt']"
    if pod.kind in ("JobSet", "TrainJob") and sources.get("LAUNCHER_ATTEMPT", {}).get("fieldPath") != field:
        yield "agents from before a suspension are not told from later ones"


def keeps_its_checkpoints(pod: Pod) -> Iterator[str]:
    claims = {each["name"] for each in pod.spec.get("volumes", []) if "persistentVolumeClaim" in each}
    kept = {each["mountPath"] for each in pod.container.get("volumeMounts", []) if each["name"] in claims}
    for word in pod.words:
        option, _, place = word.partition("=")
        if option == "--checkpoint" and place.startswith("/") and place not in kept:
            yield f"{place} is lost with the pod: no volume is mounted there"


def is_replaced_when_that_helps(pod: Pod) -> Iterator[str]:
    """75, 137 and 143 are this node's affair; all others are the job's own, the same on every node."""
    if not pod.job:
        yield from _replica_policy(pod)
        return
    rules = pod.job.get("podFailurePolicy", {}).get("rules", [])
    if rules and pod.spec.get("restartPolicy") != "Never":
        yield "podFailurePolicy asks for restartPolicy Never"
    for rule in rules:
        codes = rule.get("onExitCodes", {})
        values = codes.get("values", [])
        if ("onExitCodes" in rule) == ("onPodConditions" in rule) or values != sorted({*values} - {0}):
            yield "Kubernetes refuses a rule of podFailurePolicy"
        if codes.get("containerName", pod.container["name"]) != pod.container["name"]:
            yield "a rule of podFailurePolicy is about another container"
    if action(rules, 137, is_disrupted=True) != "Ignore":
        yield "an eviction is counted against the job"
    if action(rules, 143) != "Ignore":
        yield "a node that was told to leave (143) is counted"
    for code in (75, 137):
        if action(rules, code) != "Count":
            yield f"exit code {code} is not tried again, or without end"
    for code in (1, 2, 3, 70, 139):
        if action(rules, code) != "FailJob":
            yield f"exit code {code}, the same on every node, is tried again"
    if pod.job.get("backoffLimit", 6) < ATTEMPTS * pod.count:
        yield f"backoffLimit is spent by fewer than {ATTEMPTS} losses of all nodes"


def action(rules: list[Document], code: int, *, is_disrupted: bool = False) -> str:
    """What Kubernetes does when a pod ends so: the first rule that fits."""
    for rule in rules:
        if any(each["type"] == "DisruptionTarget" for each in rule.get("onPodConditions", [])):
            if is_disrupted:
                return str(rule["action"])
        elif (codes := rule.get("onExitCodes")) and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
    return "Count"


def _replica_policy(pod: Pod) -> Iterator[str]:
    spec = pod.document["spec"]
    policies = {each.get("restartPolicy", "Never") for each in spec["pytorchReplicaSpecs"].values()}
    is_elastic = "elasticPolicy" in spec
    # ExitCode tries 128 and above again. OnFailure tries all, also the 1 that others end with after the Master's loss.
    if policies != {"ExitCode" if is_elastic else "OnFailure"}:
        yield f"restartPolicy {', '.join(sorted(policies))}"
    if not ATTEMPTS * pod.count <= spec["runPolicy"].get("backoffLimit", 0) < 1000:
        yield "backoffLimit: too few losses are survived, or failures are tried again without end"
    if is_elastic and float(pod.config.rendezvous.settings.get("start_timeout_s", 0)) < 3600:
        yield "75 ends the job after the default of ten minutes, in which a pod may not find a place"


def is_elastic_with_workers_only(pod: Pod) -> Iterator[str]:
    if pod.kind != "PyTorchJob":
        return
    spec, config = pod.document["spec"], pod.config
    roles = set(spec["pytorchReplicaSpecs"])
    if roles != ({"Worker"} if "elasticPolicy" in spec else {"Master", "Worker"}):
        yield f"replicas of {', '.join(sorted(roles))}"
    if ("elasticPolicy" in spec) != (config.placement.nodes_min != config.placement.nodes_max):
        yield f"{config.placement.nodes_min} to {config.placement.nodes_max} nodes"


def restarts_pods_one_by_one(pod: Pod) -> Iterator[str]:
    spec = pod.document.get("jobset") or (pod.document["spec"] if pod.kind == "JobSet" else None)
    if spec is None:
        return
    policy = spec.get("failurePolicy", {})
    for reason in REASONS:
        found = next(
            (each for each in policy.get("rules", []) if reason in each.get("onJobFailureReasons", REASONS)), {}
        )
        if found.get("action", "RestartJobSet") != "FailJobSet" and policy.get("maxRestarts", 0):
            yield f"a Job that ends by {reason} makes JobSet recreate every pod"
    if len(spec["replicatedJobs"]) > 1 and pod.count > 1:
        yield "nodes of one job in several Jobs: their indices count within each"


def ends_when_the_job_does(pod: Pod) -> Iterator[str]:
    """Pods that are not needed any more, or found no place, must not keep a finished job."""
    job = pod.job
    if not job or pod.count == 1:
        return
    if job.get("completionMode") != "Indexed" or job["completions"] != job["parallelism"]:
        yield "not all pods of the Job run at the same time, or they have no numbers"
    rules = job.get("successPolicy", {}).get("rules", [])
    if rules != [{"succeededCount": 1}]:
        yield "a finished Job waits for pods that found no place"


RULES: tuple[Callable[[Pod], Iterator[str]], ...] = (
    starts_as_a_list,
    has_shared_memory,
    has_time_to_stop,
    keeps_secrets_in_files,
    meets_the_others,
    knows_its_machine,
    tells_a_later_attempt,
    keeps_its_checkpoints,
    is_replaced_when_that_helps,
    is_elastic_with_workers_only,
    restarts_pods_one_by_one,
    ends_when_the_job_does,
)


def complaints_about(pod: Pod) -> list[str]:
    """What the rules say; nothing can be said of a command that is not the agent's."""
    return list(starts_as_a_list(pod)) or [complaint for rule in RULES[1:] for complaint in rule(pod)]
