"""An API server with one JobSet on loopback, whose controller restarts pods in place as JobSet's does.

It keeps the annotations that pods write, and the two numbers of the JobSet's status, by the rules of
pkg/controllers/in_place_restart.go in kubernetes-sigs/jobset: current when all pods have the same attempt, previous one
less than the highest when they have not.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from launcher.hardware.api_server import ACCOUNT
from tests.support.stores.certificates import Certificates

TOKEN = "pod-token"
KEY = "jobset.sigs.k8s.io/in-place-restart-attempt"
SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets"


class JobSets:
    """`pod_count`: that the JobSet has. `refusals`: an HTTP status for each request to come, by method."""

    def __init__(self, directory: Path, pod_count: int) -> None:
        self.root = directory / "pod"
        self.certificates = Certificates(directory / "certificates", is_sparse=True)
        account = self.root / ACCOUNT.lstrip("/")
        account.mkdir(parents=True)
        (account / "token").write_text(TOKEN)
        (account / "namespace").write_text("training")
        (account / "ca.crt").write_text(Path(self.certificates.authority).read_text())
        self.pod_count = pod_count
        self.changed = threading.Condition()
        self.version = 1
        self.current: int | None = None
        self.previous: int | None = None
        self.strategy = "InPlaceRestart"
        self.annotations: dict[str, str] = {}
        self.attempts: dict[str, int] = {}
        self.refusals: dict[str, list[int]] = {"GET": [], "PATCH": []}
        self.requests: list[str] = []
        self.is_over = False
        self.port = 0

    @property
    def environ(self) -> dict[str, str]:
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "JOBSET_NAME": "train",
        }

    def make_object(self) -> dict[str, Any]:
        status: dict[str, Any] = {"restarts": 0}
        if self.current is not None:
            status["currentInPlaceRestartAttempt"] = self.current
        if self.previous is not None:
            status["previousInPlaceRestartAttempt"] = self.previous
        return {
            "kind": "JobSet",
            "metadata": {"name": "train", "resourceVersion": str(self.version), "annotations": self.annotations},
            "spec": {"failurePolicy": {"maxRestarts": 3, "restartStrategy": self.strategy}, "replicatedJobs": []},
            "status": status,
        }

    def write(self, pod: str, attempt: int) -> None:
        """What a PATCH of the annotation brings about."""
        with self.changed:
            self.attempts[pod] = attempt
            found = list(self.attempts.values())
            if len(found) == self.pod_count and len({*found}) == 1:
                self.current = attempt
            elif max(found) > 0:
                self.previous = max(self.previous if self.previous is not None else 0, max(found) - 1)
            self.version += 1
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.is_over = True
            self.changed.notify_all()


@contextmanager
def job_sets(directory: Path, pod_count: int) -> Iterator[JobSets]:
    """The server, until the end of the block."""
    found = JobSets(directory, pod_count)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def reply(self, status: int, content: dict[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def is_refused(self) -> bool:
            found.requests.append(f"{self.command} {self.path}")
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                self.reply(401, {"kind": "Status"})
                return True
            if refusals := found.refusals[self.command]:
                self.reply(refusals.pop(0), {"kind": "Status"})
                return True
            return False

        def do_GET(self) -> None:
            if self.is_refused():
                return
            if self.path == f"{SETS}/train":
                self.reply(200, found.make_object())
            elif self.path.startswith(f"{SETS}?fieldSelector=metadata.name%3Dtrain&resourceVersion="):
                self.watch(int(self.path.split("resourceVersion=")[1].split("&")[0]))
            else:
                self.reply(404, {"kind": "Status"})

        def watch(self, since: int) -> None:
            self.send_response(200)
            self.end_headers()
            while True:
                with found.changed:
                    while found.version <= since and not found.is_over:
                        found.changed.wait()
                    if found.is_over:
                        return
                    since, event = found.version, {"type": "MODIFIED", "object": found.make_object()}
                self.wfile.write(json.dumps(event).encode() + b"\n")
                self.wfile.flush()

        def do_PATCH(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.is_refused():
                return
            assert self.headers["Content-Type"] == "application/merge-patch+json"
            assert list(body["metadata"]["annotations"]) == [KEY]
            attempt = body["metadata"]["annotations"][KEY]
            assert isinstance(attempt, str), "annotations are texts"
            found.write(self.path.removeprefix("/api/v1/namespaces/training/pods/"), int(attempt))
            self.reply(200, {"kind": "Pod"})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(found.certificates.server_certificate, found.certificates.server_key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # of a client that has gone
    found.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield found
    finally:
        found.stop()
        server.shutdown()
        thread.join()
        server.server_close()
