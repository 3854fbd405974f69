"""The recipes for Kubernetes hold to published schemas and to what breaks jobs in practice, and their commands work.

The rules are in tests/support/documents/recipe_rules.py; each is also shown a recipe that breaks it, one
change at a time.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.config import scrub
from launcher.locality.keys import derive_levels
from tests.support.documents import schemas
from tests.support.documents.pages import ROOT, blocks
from tests.support.documents.recipe_rules import action, complaints_about, replica_action
from tests.support.documents.recipes import KUBERNETES, Document, documents, manifests, pods

EVERYBODY = [path for path in manifests() if pods(documents(path))]
NAMESPACE = "training"
CLUSTER_WIDE = {
    "ClusterQueue", "ClusterRole", "ClusterRoleBinding", "ClusterTrainingRuntime", "ResourceFlavor", "Topology",
}  # fmt: skip
PAGE = ROOT / "docs" / "cluster" / "kubernetes.md"
Change = Callable[[list[Document]], Any]


@pytest.mark.parametrize("path", manifests(), ids=lambda path: path.name)
@pytest.mark.parametrize("version", schemas.VERSIONS)
def test_every_object_is_what_its_published_schema_allows(path: Path, version: str) -> None:
    found = documents(path)
    assert found
    assert not [complaint for document in found for complaint in schemas.complaints(document, version)]


@pytest.mark.parametrize("path", EVERYBODY, ids=lambda path: path.name)
def test_every_pod_keeps_the_rules(path: Path) -> None:
    assert not {complaint for pod in pods(documents(path)) for complaint in complaints_about(pod)}


@pytest.mark.parametrize("path", EVERYBODY, ids=lambda path: path.name)
def test_the_pods_of_a_recipe_are_one_job_with_a_budget_for_restarts(path: Path) -> None:
    found = pods(documents(path))
    configs = [pod.config for pod in found]
    assert len(found) == found[0].count
    assert all(config.workers.max_restarts for config in configs)
    grids = {(config.placement.nodes_min, config.placement.mesh) for config in configs}
    scripts = {(config.workers.script, config.workers.script_args) for config in configs}
    assert len({config.rendezvous.run_id for config in configs}) == len(grids) == len(scripts) == 1
    for name in ("node_rank", "node_name"):
        numbers = [getattr(config.rendezvous, name) for config in configs]
        assert numbers == [None] * len(found) or len(set(numbers)) == len(found)


@pytest.mark.parametrize("path", EVERYBODY, ids=lambda path: path.name)
def test_every_recipe_says_what_its_exit_codes_do_or_where_that_is_said(path: Path) -> None:
    comments = " ".join(re.findall(r"#(.*)", path.read_text()))
    assert path.read_text().startswith("# ")
    assert "indexed-job.yaml" in comments or all(f"{code}" in comments for code in (2, 75, 137, 143))


def test_all_objects_with_a_namespace_are_in_one() -> None:
    spread = {
        (path.name, each["kind"])
        for path in manifests()
        for each in documents(path)
        if (each["metadata"].get("namespace") is None) != (each["kind"] in CLUSTER_WIDE)
        or each["metadata"].get("namespace", NAMESPACE) != NAMESPACE
    }
    assert not spread


@pytest.mark.parametrize("path", manifests(), ids=lambda path: path.name)
def test_no_pod_gets_a_sidecar_proxy(path: Path) -> None:
    for document in documents(path):
        for template in schemas.find_templates(document):
            assert template["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false", document["kind"]


def test_the_network_policies_select_the_pods_of_the_recipes() -> None:
    job, etcd = (each["spec"] for each in documents(KUBERNETES / "network-policy.yaml"))
    [indexed] = [each for each in documents(KUBERNETES / "indexed-job.yaml") if each["kind"] == "Job"]
    [members] = [each for each in documents(KUBERNETES / "base" / "etcd.yaml") if each["kind"] == "StatefulSet"]
    assert job["podSelector"]["matchLabels"] == {"batch.kubernetes.io/job-name": indexed["metadata"]["name"]}
    assert etcd["podSelector"]["matchLabels"] == members["spec"]["template"]["metadata"]["labels"]
    [container] = members["spec"]["template"]["spec"]["containers"]
    open_ports = {port["port"] for rule in etcd["ingress"] for port in rule["ports"]}
    assert open_ports == {port["containerPort"] for port in container["ports"]}


def test_no_two_recipes_define_the_same_cluster_wide_object() -> None:
    found = [each for path in manifests() for each in documents(path) if each["kind"] in CLUSTER_WIDE]
    for one in found:
        assert all(one == other for other in found if name_of(one) == name_of(other)), name_of(one)


def name_of(document: Document) -> tuple[str, str]:
    return document["kind"], document["metadata"]["name"]


def test_pages_create_the_namespace_and_every_secret_and_claim_that_recipes_mount() -> None:
    text = "".join((ROOT / "docs" / "cluster" / f"{name}.md").read_text() for name in ("kubernetes", "kubeflow"))
    made = (KUBERNETES / "etcd-certificates.sh").read_text()
    assert f"kubectl create namespace {NAMESPACE}" in text
    volumes = [
        volume
        for path in manifests()
        for document in documents(path)
        for template in schemas.find_templates(document)
        for volume in template["spec"].get("volumes", [])
    ]
    secrets = {each["secret"]["secretName"] for each in volumes if "secret" in each}
    assert secrets >= {"train-store", "train-elastic-job", "meshrun-job"}
    assert {name for name in secrets if f"create secret generic {name} " not in text} == {
        "etcd-server-tls",
        "etcd-client-tls",
    }
    assert '"etcd-$who-tls"' in made
    claims = {each["persistentVolumeClaim"]["claimName"] for each in volumes if "persistentVolumeClaim" in each}
    assert claims == set(re.findall(r"kind: PersistentVolumeClaim\nmetadata: \{name: ([\w-]+),", text)) | {"shared"}


def contains(whole: Any, part: Any) -> bool:
    """Whether `part` is what `whole` has, of which it may leave out keys and elements."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and all(any(contains(one, each) for one in whole) for each in part)
    return bool(whole == part)


def test_what_the_page_shows_of_yaml_is_in_a_recipe_or_keeps_to_the_schema() -> None:
    [recipe] = documents(KUBERNETES / "jobset-rdma.yaml")
    [template] = schemas.find_templates(recipe)
    shown = [(block.file, yaml.safe_load(block.text)) for block in blocks(PAGE) if block.language == "yaml"]
    assert len(shown) >= 4
    for file, part in shown:
        if {*part} <= {"metadata", "spec"}:
            assert contains(template, part), part
            continue
        found = part if file else {"spec": {"containers": [{"name": "train", "image": "i", **part}]}}
        found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, **found}
        assert not [complaint for version in schemas.VERSIONS for complaint in schemas.complaints(found, version)]
    assert not contains(template, {"spec": {"hostNetwork": False}})
    assert not contains(template, {"spec": {"containers": [{"name": "train", "env": [{"name": "x"}]}]}})


def test_the_table_of_exit_codes_is_what_the_controllers_do() -> None:
    section = PAGE.read_text().partition("\n## Exit codes\n")[2].partition("\n### ")[0]
    done = {
        "done": "Complete",
        "not counted": "Ignore",
        ", counted": "Count",
        "the job ends": "FailJob",
        "given up": "FailIndex",
    }
    [job] = [each for each in documents(KUBERNETES / "indexed-job.yaml") if each["kind"] == "Job"]
    seen: set[int] = set()
    row = r"^\| (\d[\d, ]*|others) \| .+ \| (.+) \| (.+) \|$"
    for codes, *cells in re.findall(row, section, re.MULTILINE):
        for code in (1, 70, 139) if codes == "others" else map(int, codes.split(",")):
            seen.add(code)
            rules = job["spec"]["podFailurePolicy"]["rules"]
            said = [next(what for words, what in done.items() if cell.endswith(words)) for cell in cells]
            assert said == [action(rules, code), replica_action("OnFailure", code)], code
    assert seen >= {0, 1, 2, 75, 76, 137, 143}


def test_kueue_admits_the_large_job_and_places_it_by_labels_that_agents_read() -> None:
    topology, flavor, queue, local = documents(KUBERNETES / "kueue-topology.yaml")
    [recipe] = documents(KUBERNETES / "jobset-rdma.yaml")
    [template] = schemas.find_templates(recipe)
    assert recipe["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": local["metadata"]["name"]}
    assert local["spec"] == {"clusterQueue": queue["metadata"]["name"]}
    [group] = queue["spec"]["resourceGroups"]
    [own] = group["flavors"]
    assert (own["name"], flavor["spec"]["topologyName"]) == (flavor["metadata"]["name"], topology["metadata"]["name"])
    levels = [each["nodeLabel"] for each in topology["spec"]["levels"]]
    assert levels[-1] == "kubernetes.io/hostname"
    assert template["metadata"]["annotations"]["kueue.x-k8s.io/podset-preferred-topology"] in levels[:-1]
    found = derive_levels("kubernetes", dict.fromkeys(levels, "x")).levels
    assert [level.name for level in found] == ["core", "spine", "leaf"]
    [container] = template["spec"]["containers"]
    wanted = {**container["resources"]["requests"], **container["resources"]["limits"]}
    quotas = {each["name"]: each["nominalQuota"] for each in own["resources"]}
    count = recipe["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
    assert [*quotas] == group["coveredResources"]
    assert quotas == {name: times(count, str(amount)) for name, amount in wanted.items()}


def test_the_large_job_sets_every_option_of_the_checklist() -> None:
    named = {*re.findall(r"`--([a-z-]+)", (ROOT / "docs" / "cluster" / "production.md").read_text())}
    pod = pods(documents(KUBERNETES / "jobset-rdma.yaml"))[0]
    given = {name.removeprefix("LAUNCHER_").lower().replace("_", "-") for name in pod.environ}
    given |= {word[2:].partition("=")[0] for word in pod.words if word.startswith("--")}
    assert named - given == {"redirects"}, "--tee writes files, too"
    assert pod.config.rendezvous.network is not None
    assert {"rdzv-backend", "restart-window", "hang-timeout"} <= named | given


def times(count: int, quantity: str) -> str:
    number = re.match(r"\d+", quantity)
    assert number
    return f"{count * int(number[0])}{quantity[number.end() :]}"


def test_all_secrets_of_the_store_are_known_here() -> None:
    assert {name for name in scrub.PRIVATE if name.endswith("_FILE")} == {f"{name}_FILE" for name in scrub.NAMES}


def at(found: list[Document], *path: str | int) -> Any:
    value: Any = found
    for step in path:
        value = value[step]
    return value


JOB = (1, "spec")  # of indexed-job.yaml, which begins with its Service
POD = (*JOB, "template", "spec")
SET_JOB = (0, "spec", "replicatedJobs", 0, "template", "spec")
RUNTIME = (0, "spec", "template", "spec", "replicatedJobs", 0, "template", "spec", "template", "spec")
REPLICAS = (0, "spec", "pytorchReplicaSpecs")
WORKER = (*REPLICAS, "Worker", "template", "spec")
BROKEN: list[tuple[str, str, Change]] = [
    ("indexed-job.yaml", "does not pass SIGTERM on",
     lambda found: at(found, *POD, "containers", 0).update(command=["sh", "-c", "meshrun train.py"], args=[])),
    ("indexed-job.yaml", "/dev/shm", lambda found: at(found, *POD, "volumes", 0, "emptyDir").pop("medium")),
    ("indexed-job.yaml", "is not 135", lambda found: at(found, *POD).update(terminationGracePeriodSeconds=45)),
    ("indexed-job.yaml", "LAUNCHER_JOB_SECRET stands",
     lambda found: at(found, *POD, "containers", 0, "env").append({"name": "LAUNCHER_JOB_SECRET", "value": "hush"})),
    ("indexed-job.yaml", "is not in a Secret", lambda found: at(found, *POD, "volumes").__setitem__(
        2, {"name": "etcd", "emptyDir": {}})),
    ("pytorchjob-elastic.yaml", "is not in the Secret",
     lambda found: at(found, 0, "spec", "elasticPolicy", "rdzvConf", 0).update(value="/etc/meshrun/etcd/ca.pem")),
    ("jobset.yaml", "no name that a headless Service publishes",
     lambda found: at(found, 0, "spec", "network").update(publishNotReadyAddresses=False)),
    ("jobset.yaml", "4 pods are a job of 8 nodes",
     lambda found: at(found, *SET_JOB, "template", "spec", "containers", 0, "env", 0).update(value="2:8")),
    ("indexed-job.yaml", "without TLS",
     lambda found: at(found, *POD, "containers", 0, "env").append({"name": "LAUNCHER_RDZV_CONF", "value": "timeout=9"})
     or at(found, *POD, "containers", 0, "env", 2).update(value="etcd://etcd-0.etcd")),
    ("pytorchjob.yaml", "is not spec.nodeName", lambda found: at(found, *WORKER, "containers", 0, "env").pop()),
    ("pytorchjob.yaml", "the agent says",
     lambda found: at(found, *WORKER, "containers", 0, "args").insert(
         0, "--rdzv-conf=tiemout=9")),
    ("indexed-job.yaml", "an eviction is counted", lambda found: at(found, *JOB, "podFailurePolicy", "rules").pop(0)),
    ("indexed-job.yaml", "(143) is counted", lambda found: at(found, *JOB, "podFailurePolicy", "rules").pop(1)),
    ("indexed-job.yaml", "exit code 75 is not tried again",
     lambda found: at(found, *JOB, "podFailurePolicy", "rules", 4, "onExitCodes").update(values=[2, 143])
     or at(found, *JOB, "podFailurePolicy", "rules").pop(2)),
    ("indexed-job.yaml", "refuses to start (2) ends the job",
     lambda found: at(found, *JOB, "podFailurePolicy", "rules").pop(3)
     and at(found, *JOB, "podFailurePolicy", "rules", 3, "onExitCodes").update(values=[75, 137, 143])),
    ("indexed-job.yaml", "exit code 2 is tried again",
     lambda found: at(found, *JOB, "podFailurePolicy", "rules").pop(3)),
    ("jobset-rdma.yaml", "maxFailedIndexes is not 1 to 20",
     lambda found: at(found, *SET_JOB).update(maxFailedIndexes=21)),
    ("jobset-etcd.yaml", "before the job is", lambda found: at(found, *SET_JOB).update(backoffLimitPerIndex=6)),
    ("indexed-job.yaml", "refuses a rule",
     lambda found: at(found, *JOB, "podFailurePolicy", "rules", 2, "onExitCodes").update(values=[137, 75])),
    ("init-container.yaml", "about another container",
     lambda found: at(found, 0, "spec", "podFailurePolicy", "rules", 3, "onExitCodes").update(containerName="main")),
    ("indexed-job.yaml", "restartPolicy Never", lambda found: at(found, *POD).update(restartPolicy="OnFailure")),
    ("indexed-job.yaml", "backoffLimit is spent", lambda found: at(found, *JOB).pop("backoffLimit")),
    ("pytorchjob.yaml", "Master: exit code 75 ends the job",
     lambda found: at(found, *REPLICAS, "Master").update(restartPolicy="Never")),
    ("pytorchjob-elastic.yaml", "75 ends the job",
     lambda found: at(found, *REPLICAS, "Worker").update(restartPolicy="ExitCode")),
    ("pytorchjob-elastic.yaml", "137 is tried again without end",
     lambda found: at(found, *REPLICAS, "Worker").update(restartPolicy="ExitCode")),
    ("pytorchjob-elastic.yaml", "a success is started again",
     lambda found: at(found, *REPLICAS, "Worker").update(restartPolicy="Always")),
    ("pytorchjob-elastic.yaml", "too few losses",
     lambda found: at(found, 0, "spec", "runPolicy").pop("backoffLimit")),
    ("indexed-job.yaml", "not the container's port",
     lambda found: at(found, *POD, "containers", 0, "ports", 0).update(containerPort=9401)),
    ("pytorchjob.yaml", "not the container's port",
     lambda found: at(found, *WORKER, "containers", 0, "env", 2).update(value="9400")),
    ("jobset.yaml", "the PodMonitor does not select",
     lambda found: at(found, *SET_JOB, "template", "metadata").pop("labels")),
    ("jobset.yaml", "hangs is not replaced",
     lambda found: at(found, *SET_JOB, "template", "spec", "containers", 0).pop("livenessProbe")),
    ("trainjob.yaml", "asks something else",
     lambda found: at(found, *RUNTIME, "containers", 0, "livenessProbe", "httpGet").update(path="/readyz")),
    ("tpu-jobset.yaml", "waits for less",
     lambda found: at(found, *SET_JOB, "template", "spec", "containers", 0, "livenessProbe").update(timeoutSeconds=5)),
    ("pytorchjob.yaml", "fails while the agent may wait",
     lambda found: at(found, *WORKER, "containers", 0, "args").insert(0, "--start-timeout=1200")),
    ("jobset-etcd.yaml", "kill workers that train",
     lambda found: at(found, *SET_JOB, "template", "spec", "containers", 0, "livenessProbe").update(periodSeconds=5)),
    ("jobset-rdma.yaml", "kill workers that train",
     lambda found: at(found, *SET_JOB, "template", "spec", "containers", 0, "args").insert(0, "--lease-ttl=30")),
    ("indexed-job.yaml", "is not ready, and they",
     lambda found: at(found, *POD, "containers", 0).update(readinessProbe={"periodSeconds": 10})),
    ("init-container.yaml", "until the probe kills them",
     lambda found: at(found, 0, *POD[1:], "containers", 0).update(livenessProbe={"periodSeconds": 10})),
    ("indexed-job.yaml", "/var/log/job is lost",
     lambda found: at(found, *POD, "containers", 0, "args").insert(0, "--log-dir=/var/log/job")),
    ("indexed-job.yaml", "no log files",
     lambda found: at(found, *POD, "containers", 0, "args").insert(0, "--tee=0")),
    ("pytorchjob-elastic.yaml", "replicas of Master, Worker",
     lambda found: at(found, *REPLICAS).update(
         Master={**copy.deepcopy(at(found, *REPLICAS, "Worker")), "replicas": 1})),
    ("jobset.yaml", "makes JobSet recreate every pod",
     lambda found: at(found, 0, "spec").update(failurePolicy={"maxRestarts": 3})),
    ("jobset.yaml", "waits for pods that found no place", lambda found: at(found, *SET_JOB).pop("successPolicy")),
    ("tpu-jobset.yaml", "waits for pods that found no place", lambda found: at(found, *SET_JOB).pop("successPolicy")),
    ("tpu-jobset.yaml", "before a suspension",
     lambda found: at(found, *SET_JOB, "template", "spec", "containers", 0, "env").pop(-2)),
    ("jobset-etcd.yaml", "is lost with the pod",
     lambda found: at(found, *SET_JOB, "template", "spec", "containers", 0, "volumeMounts").pop(1)),
    ("indexed-job.yaml", "not all pods", lambda found: at(found, *JOB).update(parallelism=2)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sentence", "break_it"), BROKEN, ids=[f"{name}: {words}" for name, words, _ in BROKEN]
)
def test_a_recipe_that_breaks_a_rule_is_found_out(name: str, sentence: str, break_it: Change) -> None:
    found = documents(next(path for path in manifests() if path.name == name))
    break_it(found)
    complaints = [complaint for pod in pods(found) for complaint in complaints_about(pod)]
    assert any(sentence in complaint for complaint in complaints), complaints


WRONG: list[tuple[str, Change]] = [
    ("indexed-job.yaml", lambda found: at(found, *POD).update(restartPolcy="Never")),
    ("indexed-job.yaml", lambda found: at(found, *JOB).update(backoffLimit="many")),
    ("node-labels.yaml", lambda found: at(found, 1, "rules", 0).update(verb=["get"])),
    ("pytorchjob.yaml", lambda found: at(found, *WORKER, "containers", 0).update(cmd=[])),
    ("jobset.yaml", lambda found: at(found, *SET_JOB, "template", "spec").update(gracePeriodSeconds=45)),
]


@pytest.mark.parametrize(("name", "break_it"), WRONG, ids=range(len(WRONG)))
def test_a_field_that_nobody_knows_or_of_another_type_is_refused(name: str, break_it: Change) -> None:
    found = documents(next(path for path in manifests() if path.name == name))
    break_it(found)
    assert [complaint for document in found for complaint in schemas.complaints(document, schemas.VERSIONS[0])]
