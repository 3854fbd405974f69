"""What breaks jobs on Kubernetes in practice, as rules over the pods of a recipe.

A rule takes a pod, with what its controller adds, and gives a sentence for each thing that is wrong. Most of it comes
down to two facts: an agent's exit code says whether its node or the whole job is meant (docs/reference/exit-codes.md),
and pods must find each other, be stopped and be replaced one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from launcher.config import scrub
from launcher.locality.kubernetes import NODE_NAMES
from rendezvous.settings import DEFAULTS
from tests.support.documents.recipes import KUBERNETES, Document, Pod, documents

MARGIN_S = 15.0  # from the end of the agent's own grace to Kubernetes' SIGKILL
ANSWER_S = 5.0  # how long /healthz waits for the agent's loop
SILENCE_S = 60.0  # before a pod is replaced: long after the lease of its agent has expired
ATTEMPTS = 10  # of the whole job, at least, before Kubernetes gives up
MADE_BY_SCRIPT = {"ca.crt", "tls.crt", "tls.key"}  # etcd-certificates.sh, and what cert-manager would write
REASONS = ("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded", "PodFailurePolicy")


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


def keeps_its_files(pod: Pod) -> Iterator[str]:
    claims = {each["name"] for each in pod.spec.get("volumes", []) if "persistentVolumeClaim" in each}
    kept = {each["mountPath"] for each in pod.container.get("volumeMounts", []) if each["name"] in claims}
    places = [word.partition("=")[2] for word in pod.words if word.startswith("--checkpoint=/")]
    output = pod.config.output
    places.append(output.log_dir or "the log directory")
    if not any((*output.tee.select(0), *output.redirects.select(0))):
        yield "workers write no log files"
    for place in places:
        if not any(f"{place}/".startswith(f"{folder}/") for folder in kept):
            yield f"{place} is lost with the pod: no volume is mounted there"


def is_scraped(pod: Pod) -> Iterator[str]:
    if pod.count == 1:
        return
    option = pod.config.extensions.get("metrics-port")
    ports = {each.get("name"): each["containerPort"] for each in pod.container.get("ports", [])}
    if option is None or option.read() != ("0.0.0.0", ports.get("metrics")):
        yield "--metrics-port is not the container's port of that name, on all addresses"
    [monitor] = documents(KUBERNETES / "trainer" / "chart" / "files" / "pod-monitor.yaml")
    if not monitor["spec"]["selector"]["matchLabels"].items() <= pod.template["metadata"].get("labels", {}).items():
        yield "the PodMonitor does not select the pod"


def is_probed_without_harm(pod: Pod) -> Iterator[str]:
    """A pod whose agent hangs is replaced; one that trains or waits is not."""
    startup, liveness = (pod.container.get(name) for name in ("startupProbe", "livenessProbe"))
    if "readinessProbe" in pod.container:
        yield "a node that waits for others is not ready, and they may wait for it"
    if pod.count == 1:
        if liveness:
            yield "without a lease the workers of an agent that hangs go on training, until the probe kills them"
        return
    if not startup or not liveness:
        yield "a pod whose agent hangs is not replaced"
        return
    for probe in (startup, liveness):
        if probe.get("httpGet") != {"path": "/healthz", "port": "metrics"}:
            yield "a probe asks something else than /healthz"
        if probe.get("timeoutSeconds", 1) <= ANSWER_S:
            yield "a probe waits for less than its answer"
    if find_patience_s(startup) < 2 * pod.config.rendezvous.start_timeout_s:
        yield "the startup probe fails while the agent may wait for its store"
    if find_patience_s(liveness) < max(SILENCE_S, 3 * (pod.config.rendezvous.lease_ttl_s or DEFAULTS.lease_ttl_s)):
        yield "the liveness probe may fail before the lease has expired, and kill workers that train"


def find_patience_s(probe: Document) -> float:
    """How long it may fail before the container is killed."""
    return float(probe.get("periodSeconds", 10) * probe.get("failureThreshold", 3))


def is_replaced_when_that_helps(pod: Pod) -> Iterator[str]:
    """75, 137 and 143 are this node's affair, and 2 may be; all others are the job's own, the same on every node."""
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
    for code in (1, 3, 70, 76, 139):
        if action(rules, code) != "FailJob":
            yield f"exit code {code}, the same on every node, is tried again"
    yield from _refusal_policy(pod, action(rules, 2))
    if pod.job.get("backoffLimit", 6) < ATTEMPTS * pod.count:
        yield f"backoffLimit is spent by fewer than {ATTEMPTS} losses of all nodes"


def _refusal_policy(pod: Pod, done: str) -> Iterator[str]:
    """An elastic job can do without the node whose agent refuses to start, but not without any number of them."""
    network, spare = pod.config.rendezvous.network, pod.count - pod.config.placement.nodes_min
    if done == "FailIndex":
        if not 0 < pod.job.get("maxFailedIndexes", 0) <= spare:
            yield f"maxFailedIndexes is not 1 to {spare}: nodes wait for those that were given up"
        if pod.job.get("backoffLimitPerIndex", 0) < pod.job.get("backoffLimit", 6):
            yield "an index is given up before the job is"
    elif done != "FailJob":
        yield "exit code 2 is tried again"
    elif spare and network is not None and network.backend == "etcd":
        yield "one node that refuses to start (2) ends the job"


def action(rules: list[Document], code: int, *, is_disrupted: bool = False) -> str:
    """What Kubernetes does when a pod ends so: the first rule that fits."""
    if code == 0:
        return "Complete"
    for rule in rules:
        if any(each["type"] == "DisruptionTarget" for each in rule.get("onPodConditions", [])):
            if is_disrupted:
                return str(rule["action"])
        elif (codes := rule.get("onExitCodes")) and (code in codes["values"]) == (codes["operator"] == "In"):
            return str(rule["action"])
    return "Count"


def _replica_policy(pod: Pod) -> Iterator[str]:
    spec = pod.document["spec"]
    for role, replica in spec["pytorchReplicaSpecs"].items():
        policy = replica.get("restartPolicy", "Never")
        for code in (75, 137, 143):
            if (done := replica_action(policy, code)) != "Count":
                end = "ends the job" if done == "FailJob" else "is tried again without end"
                yield f"{role}: exit code {code} {end} (restartPolicy {policy})"
        if replica_action(policy, 0) != "Complete":
            yield f"{role}: a success is started again (restartPolicy {policy})"
    if not ATTEMPTS * pod.count <= spec["runPolicy"].get("backoffLimit", 0) < 1000:
        yield "backoffLimit: too few losses are survived, or failures are tried again without end"


def replica_action(policy: str, code: int) -> str:
    """What the Training Operator, or the kubelet for it, does when the container of a replica ends so (1.9)."""
    if policy == "Always":
        return "Count"
    if code == 0:
        return "Complete"
    if policy == "ExitCode":  # 1 to 127 are permanent; a new pod has no restarts that backoffLimit could count
        return "Ignore" if code >= 128 else "FailJob"
    return "Count" if policy == "OnFailure" else "FailJob"


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
    keeps_its_files,
    is_scraped,
    is_probed_without_harm,
    is_replaced_when_that_helps,
    is_elastic_with_workers_only,
    restarts_pods_one_by_one,
    ends_when_the_job_does,
)


def complaints_about(pod: Pod) -> list[str]:
    """What the rules say; nothing can be said of a command that is not the agent's."""
    return list(starts_as_a_list(pod)) or [complaint for rule in RULES[1:] for complaint in rule(pod)]
