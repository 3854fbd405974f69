"""--in-place-restart jobset: this agent takes the part that JobSet's own agent has in a restart of all pods.

With the restart strategy InPlaceRestart (KEP-467 of kubernetes-sigs/jobset, alpha since 0.11, feature gate
InPlaceRestart) a JobSet does not create pods anew when one has failed: the containers of all pods begin again. Each pod
has a number, its attempt, in an annotation that its agent writes, and the controller two in the JobSet's status:

    annotation jobset.sigs.k8s.io/in-place-restart-attempt    at the agent's start: currentInPlaceRestartAttempt + 1,
                                                              0 where there is none yet
    currentInPlaceRestartAttempt                              what all pods have; a pod with it may begin to work
    previousInPlaceRestartAttempt                             a pod with this or less ends, to come back with the next

An agent holds its workers back until its attempt is the current one, and ends when that is over. Here it ends as after
SIGTERM, with 143, which the container's restartPolicyRules answer with a restart. In a JobSet of another strategy, or
with the annotation that switches the strategy off, it does neither, as JobSet's agent. The facts are from
cmd/in-place-restart-agent and pkg/controllers/in_place_restart.go of JobSet 0.12.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from launcher.agent.startup.startup import end_on_signal
from launcher.config.config import Config
from launcher.hardware.api_server import ApiServer
from launcher.hardware.metadata_server import HttpResponse, NoAnswer, parse_object
from launcher.model.console import log
from launcher.model.errors import UsageError, describe_bug, sanitize
from rendezvous import codec
from rendezvous.errors import RecordError

JOBSET_NAME, POD_NAME = "JOBSET_NAME", "POD_NAME"
"""The variables of JobSet's own agent, which a pod's definition takes from its metadata."""
ATTEMPT_KEY = "jobset.sigs.k8s.io/in-place-restart-attempt"
DISABLED_KEY = "jobset.sigs.k8s.io/disable-in-place-restart"
STRATEGY = "InPlaceRestart"
LIMIT_S = 10.0
PAUSE_S, PAUSE_MAX_S = 1.0, 30.0
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_ROLE = "a Role with get, list and watch of jobsets in jobset.x-k8s.io, and patch of pods, is missing"


class JobSetMetadata(Struct, frozen=True, rename="camel"):
    annotations: dict[str, str] = {}
    resource_version: str = ""


class FailurePolicy(Struct, frozen=True, rename="camel"):
    restart_strategy: str = ""


class JobSetSpec(Struct, frozen=True, rename="camel"):
    failure_policy: FailurePolicy | None = None


class JobSetStatus(Struct, frozen=True, rename="camel"):
    current_in_place_restart_attempt: int | None = None
    previous_in_place_restart_attempt: int | None = None


class JobSet(Struct, frozen=True, rename="camel"):
    """What counts of a JobSet."""

    metadata: JobSetMetadata = JobSetMetadata()
    spec: JobSetSpec = JobSetSpec()
    status: JobSetStatus = JobSetStatus()

    @property
    def restarts_in_place(self) -> bool:
        policy = self.spec.failure_policy
        is_chosen = policy is not None and policy.restart_strategy == STRATEGY
        return is_chosen and DISABLED_KEY not in self.metadata.annotations

    @property
    def next_attempt(self) -> int:
        """The attempt of a pod that starts now."""
        current = self.status.current_in_place_restart_attempt
        return 0 if current is None else current + 1

    def is_over(self, attempt: int) -> bool:
        """Whether a pod of this attempt has to start again."""
        previous = self.status.previous_in_place_restart_attempt
        return previous is not None and attempt <= previous

    def has_begun(self, attempt: int) -> bool:
        """Whether all pods have this attempt, and may work."""
        return self.status.current_in_place_restart_attempt == attempt


class JobSetPod:
    """This pod of a JobSet, and what its account may do there. `root`: the directory above /var, for tests.

    Raises UsageError where the pod's definition lacks something.
    """

    def __init__(self, environ: Mapping[str, str], root: str = "/") -> None:
        for name in (JOBSET_NAME, POD_NAME):
            if not _NAME.fullmatch(text := environ.get(name, "")):
                raise UsageError(
                    f"--in-place-restart jobset: {name} " + (f"{text!r} is not a valid name" if text else "is not set"),
                    f"the pod's definition sets {JOBSET_NAME} from "
                    f"metadata.annotations['jobset.sigs.k8s.io/jobset-name'] and {POD_NAME} from metadata.name",
                )
        self.name = environ[JOBSET_NAME]
        self._allowed: set[str] = set()
        try:
            self._server = ApiServer(environ, root)
            namespace = self._server.read_namespace()
        except NoAnswer as error:
            raise UsageError(f"--in-place-restart jobset: {error}") from None
        self._set_path = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
        self._pod_path = f"/api/v1/namespaces/{namespace}/pods/{environ[POD_NAME]}"

    def read(self) -> JobSet:
        """Return the JobSet now. Raises NoAnswer, and UsageError for what waiting cannot fix.

        What was allowed before is not refused for good: that raises NoAnswer.
        """
        return _decode(self._require(self._server.ask(f"{self._set_path}/{self.name}", LIMIT_S), "read its JobSet"))

    def watch(self, known: JobSet) -> Iterator[JobSet]:
        """Yield the JobSet whenever it has changed since `known`, until the server ends that. Raises NoAnswer."""
        since = known.metadata.resource_version
        path = f"{self._set_path}?fieldSelector=metadata.name%3D{self.name}&resourceVersion={since}"
        for event in self._server.watch(path, LIMIT_S):
            if event.get("type") not in ("ADDED", "MODIFIED"):
                return  # deleted, and so will be this pod; or too old, and it is read again
            yield _decode(event.get("object"))

    def write_attempt(self, attempt: int) -> None:
        """Write the attempt of this pod. Raises as `read`."""
        content = codec.encode({"metadata": {"annotations": {ATTEMPT_KEY: str(attempt)}}})
        kind = "application/merge-patch+json"
        answer = self._server.ask(self._pod_path, LIMIT_S, method="PATCH", content=content, content_type=kind)
        self._require(answer, "write an annotation of its pod")

    def _require(self, answer: HttpResponse, what: str) -> dict[str, object]:
        # A server that starts, or a definition that is replaced, refuses for a while what it allowed before.
        is_new = what not in self._allowed
        if answer.status == 403 and is_new:
            raise UsageError(f"--in-place-restart jobset: the API server does not let this pod {what}: {_ROLE}")
        if answer.status == 404 and is_new:
            hint = f"check {JOBSET_NAME} and {POD_NAME}, and that JobSet is installed"
            raise UsageError(f"--in-place-restart jobset: this pod cannot {what}: the API server answers 404", hint)
        if answer.status != 200:
            raise NoAnswer(f"answers {answer.status} to the request to {what}")
        self._allowed.add(what)
        return parse_object(answer.text)


def _decode(found: object) -> JobSet:
    try:
        return codec.convert(JobSet, found, "the JobSet")
    except RecordError as error:
        raise NoAnswer(f"answers with something other than a JobSet: {sanitize(str(error))}") from None


@end_on_signal()
def pass_barrier(config: Config, environ: Mapping[str, str]) -> tuple[Config, RestartWatch | None]:
    """Wait until all pods of the JobSet are there, however long; return the config with this attempt.

    The watch is to be started later; None if the JobSet does not restart in place. Raises
    UsageError.
    """
    pod = JobSetPod(environ)
    attempt = wait_at_barrier(pod)
    if attempt is None:
        return config, None
    if config.attempt is None:
        config = replace(config, attempt=attempt)
    return config, RestartWatch(pod, attempt)


def wait_at_barrier(pod: JobSetPod) -> int | None:
    """Return the attempt that all pods have; None if the JobSet does not restart in place. Raises UsageError."""
    attempt: int | None = None
    for found in follow(pod):
        if not found.restarts_in_place:
            log(f"JobSet {pod.name} does not restart in place, so this node does not wait for its other pods")
            return None
        if attempt is None or found.is_over(attempt):
            attempt = _write_next(pod, found)
            log(f"JobSet {pod.name}: attempt {attempt} starts when all of its pods are running")
        if found.has_begun(attempt):
            return attempt
    raise AssertionError("a watch has no end")


def _write_next(pod: JobSetPod, found: JobSet) -> int:
    patience = Patience()
    is_written = False
    while not is_written:
        with patience:
            pod.write_attempt(found.next_attempt)
            is_written = True
    return found.next_attempt


def follow(pod: JobSetPod) -> Iterator[JobSet]:
    """Yield the JobSet now and after each change, for ever; trouble is said when it changes. Raises UsageError."""
    patience = Patience()
    while True:
        with patience:
            known = pod.read()
            yield known
            for found in pod.watch(known):
                patience.reset()
                yield found
            time.sleep(PAUSE_S)


class Patience:
    """A context in which the API server may not answer: that is said if it is new, and costs a growing pause."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """The server has answered."""
        self._said, self._pause_s = "", PAUSE_S

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, NoAnswer):
            return False
        if str(error) != self._said:
            self._said = str(error)
            log(f"--in-place-restart jobset: the API server {error}; asking again")
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        return True


class RestartWatch:
    """Ends this agent, by SIGTERM to itself, when the attempt of its pod is over. Start it once SIGTERM is handled."""

    def __init__(self, pod: JobSetPod, attempt: int) -> None:
        self._pod = pod
        self._attempt = attempt

    def start(self) -> None:
        threading.Thread(target=self._run, name="jobset", daemon=True).start()

    def _run(self) -> None:
        try:
            if any(found.is_over(self._attempt) for found in follow(self._pod)):
                log(f"JobSet {self._pod.name} restarts all pods: attempt {self._attempt} is over, and this node leaves")
                os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:  # the job goes on without it
            log(f"this node cannot detect restarts of the JobSet: {describe_bug(error)}")
