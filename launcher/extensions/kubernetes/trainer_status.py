"""--progress kubeflow: what a TrainJob of Kubeflow Trainer v2 shows of the training, in its `status.trainerStatus`.

The Trainer gives each pod the address of a server that takes the status, with a token for it. The protocol is
KEP-2779 of Kubeflow's, here as the server in kubeflow/trainer v2.3 reads it (pkg/statusserver, pkg/apis/trainer): a
POST replaces the whole status, so one agent sends it, that of the node with rank 0. Others who would send one, such as
transformers' callback in that rank, do not see the variables by which they find the server.

A thread sends: 5 s after the last at the soonest, sooner only for the end, when there is something new, and once a
minute. Nothing waits for it but the end of the agent, for a moment, and nothing that the server does fails the job:
each kind of trouble is said once, and the pauses grow.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct
from msgspec.structs import replace

from launcher.hardware.api_server import make_tls_context, read_token
from launcher.hardware.linux.figures import read_figures
from launcher.hardware.linux.shared_page import SharedPage
from launcher.hardware.metadata_server import HttpResponse, NoAnswer, Server, is_token, parse_object
from launcher.model.concurrency import NO_THREAD, LateThread
from launcher.model.console import format_time
from launcher.model.errors import describe_bug, sanitize
from launcher.views.goodput import compute_goodput
from launcher.views.run_events import AgentEnded, RoundEnded, RoundStarted, RunEvent, WorkerStarted
from launcher.views.timeline import RunTimeline
from rendezvous import codec
from rendezvous.errors import RecordError

URL, CA_FILE, TOKEN_FILE = (f"KUBEFLOW_TRAINER_SERVER_{what}" for what in ("URL", "CA_CERT", "TOKEN"))
LIMIT_S = 5.0
"""For one POST, from the look-up of the name to the end of the answer."""
END_LIMIT_S = 3.0
"""For the last state, when the agent ends."""
PAUSE_S = 5.0
"""Between two POSTs, as Kubeflow's own client keeps; its server has no limit."""
PAUSE_MAX_S = 300.0
RETRY_AFTER_MAX_S = 3600.0
UNCHANGED_S = 60.0
"""After which a status that has not changed is sent again, with a new time."""

SIZE_MAX = 1 << 16
METRICS_MAX, LENGTH_MAX = 256, 64
_INT_MAX = 2**31 - 1
_ANSWER_SIZE_MAX = 1 << 19  # it repeats the status, and Go escapes some letters with six
_RATE_SAMPLES = 60  # five minutes of them
_COMPLAINTS_MAX = 20
_LABEL = "--progress kubeflow"


class Figures(Struct, frozen=True, kw_only=True):
    """What the script has said with `launcher.worker.progress`, as it lies in the shared page."""

    round: int = 0
    metrics: dict[str, str] = {}
    total: int = 0


class TrainerStatus(Struct, frozen=True, kw_only=True):
    """The status of a Kubeflow TrainJob."""

    percentage: int | None
    """0 to 100, None for unknown."""
    remaining_s: int | None
    """None for unknown."""
    metrics: tuple[tuple[str, str], ...]
    """Names and values, within the limits."""

    def encode(self, at: float) -> bytes:
        """Encode it as the body of a POST. `at`: seconds since 1970, of which Kubernetes takes whole ones."""
        found = {
            "progressPercentage": self.percentage,
            "estimatedRemainingSeconds": self.remaining_s,
            "metrics": [{"name": name, "value": value} for name, value in self.metrics] or None,
            "lastUpdatedTime": format_time(at).partition(".")[0] + "Z",
        }
        return codec.encode({"trainerStatus": {key: value for key, value in found.items() if value is not None}})


def limit_metrics(found: Iterable[tuple[str, str]]) -> tuple[tuple[tuple[str, str], ...], str]:
    """Return the metrics as the Trainer takes them, and a sentence about what it would have refused, "" for nothing.

    Texts are cut to 64 characters, an empty one is left out with its metric, and so is what comes after 256 metrics or
    60 KiB of them.
    """
    kept: dict[str, str] = {}
    size, is_cut = 0, False
    for name, value in found:
        key, text = name[:LENGTH_MAX], value[:LENGTH_MAX]
        size += 24 + len(codec.encode([key, text]))
        fits = key and text and (len(kept) < METRICS_MAX or key in kept) and size <= SIZE_MAX - 4096
        is_cut |= (key, text) != (name, value) or not fits
        if fits:
            kept[key] = text
    remark = f"the Trainer takes {METRICS_MAX} metrics of 1 to {LENGTH_MAX} characters and 64 KiB: others are left out"
    return tuple(kept.items()), remark if is_cut else ""


def estimate_remaining_s(samples: deque[tuple[float, int]], step: int, total: int, now: float) -> int | None:
    """Return how long the rest takes, in whole seconds; None if it is not known.

    `step`: the highest that is done, from 0. `samples`: times and steps of the last minutes in this round; this one is
    added.
    """
    if not samples or now > samples[-1][0]:
        samples.append((now, step))
    since, first = samples[0]
    left, rate = total - (step + 1), (step - first) / (now - since) if now > since else 0.0
    if left <= 0:
        return 0
    return min(_INT_MAX, math.ceil(left / rate)) if rate > 0 else None


class StatusServer(Struct, frozen=True):
    """Where the status goes. The files are read for each POST: Kubernetes replaces the token hourly."""

    host: str
    port: int
    path: str
    ca_file: str
    token_file: str


def find_server(environ: Mapping[str, str]) -> StatusServer:
    """Return what the Trainer's variables say. Raises NoAnswer with a sentence."""
    from urllib.parse import urlsplit

    missing = [name for name in (URL, CA_FILE, TOKEN_FILE) if not environ.get(name)]
    if missing:
        gate = "the Trainer sets it where its feature gate TrainJobStatus is on"
        raise NoAnswer(f"{missing[0]} is not set, so no progress is reported; {gate}")
    text = environ[URL]
    with suppress(ValueError):
        parts = urlsplit(text)
        if parts.scheme == "https" and parts.hostname and parts.username is None and is_token(text):
            path = f"{parts.path}?{parts.query}" if parts.query else parts.path
            return StatusServer(parts.hostname, parts.port or 443, path or "/", environ[CA_FILE], environ[TOKEN_FILE])
    raise NoAnswer(f"{URL} is not an https:// address of a server, so no progress is reported")


def post(server: StatusServer, body: bytes, limit_s: float) -> HttpResponse:
    """Send a status, and return the response, whatever its status. Raises NoAnswer with a clause about the server."""
    token = read_token(server.token_file, "cannot be asked without a token")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Accept": "application/json"}
    opened = Server((server.host, server.port), limit_s, make_tls_context(server.ca_file))
    return opened.ask(server.path, headers, method="POST", content=body, size_max=_ANSWER_SIZE_MAX)


def describe_refusal(answer: HttpResponse, token_file: str) -> str:
    """Return what is wrong with an answer as a clause about the server; "" for one that accepts the status."""
    if answer.status == 200:
        return ""
    if answer.status in (401, 403):
        return f"does not accept the token in {sanitize(token_file)} ({answer.status})"
    reason = ""
    with suppress(NoAnswer):
        reason = str(parse_object(answer.text).get("message", ""))
    return f"answers {answer.status}" + (f": {sanitize(reason[:200])}" if reason else "")


def find_pause_s(answer: HttpResponse | None, failure_count: int) -> float:
    """Return the seconds until the next POST, after this many failures in a row. `answer`: None if there was none."""
    pause_s = min(PAUSE_S * (1 << min(failure_count, 10)), PAUSE_MAX_S)
    asked = answer.headers.get("retry-after", "") if answer is not None and answer.status in (429, 503) else ""
    if asked.isascii() and asked.isdigit() and len(asked) < 10:
        return max(pause_s, min(float(asked), RETRY_AFTER_MAX_S))
    return pause_s


# docs/internals/decisions/0055-one-writer-of-a-trainjobs-progress.md
class TrainerReporter:
    """The sink of events that sends a run's status while rank 0 is on this node. `warn` gets a sentence on trouble."""

    def __init__(self, environ: Mapping[str, str], page: SharedPage | None, warn: Callable[[str], None]) -> None:
        self._environ = environ
        self._page = page
        self._warn = warn
        self._lock = threading.Lock()
        self._has_ended = threading.Event()
        self.thread = LateThread(self._run, "trainer-status")
        self._complaints: set[str] = set()
        # Under the lock: what the loop writes and the thread reads.
        self._timeline = RunTimeline()
        self._round: RoundStarted | None = None  # the last one with rank 0 here
        self._is_running = False
        self._last_cause = self._last_verdict = ""
        # Of the thread.
        self._figures = Figures()
        self._last_step = -1
        self._samples: deque[tuple[float, int]] = deque(maxlen=_RATE_SAMPLES)
        self._rate_round = 0

    def write(self, event: RunEvent) -> None:
        """Take an event, and begin to send once workers run."""
        with self._lock:
            self._timeline.take(event)
            match event:
                case RoundStarted(ranks=ranks):
                    self._round = event if 0 in ranks else None
                    self._is_running = False  # the page still has the steps of the round before
                case RoundEnded(cause=cause):
                    self._is_running, self._last_cause = False, cause
                case AgentEnded(verdict=verdict):
                    self._last_verdict = verdict
                case WorkerStarted() if self._round is not None:
                    self._is_running = True
                    self.thread.start()

    def close(self) -> None:
        """Wait a moment for the last state."""
        self._has_ended.set()
        if not self.thread.finish(END_LIMIT_S):
            why = f": {NO_THREAD}" if self.thread.is_missing else f" within {END_LIMIT_S:g} s"
            self._complain("not sent", f"the last state was not sent{why}")

    def _run(self) -> None:
        try:
            self._report(find_server(self._environ))
        except NoAnswer as error:
            self._complain("no server", str(error))
        except Exception as error:  # the job goes on without it
            self._complain("bug", f"no further progress is reported: {describe_bug(error)}")

    def _report(self, server: StatusServer) -> None:
        pause_s, sent_at, failure_count = PAUSE_S, -math.inf, 0
        sent: TrainerStatus | None = None
        while not self._has_ended.wait(pause_s):
            pause_s = PAUSE_S
            status = self._make_status(time.monotonic())
            if status is None or (status == sent and time.monotonic() < sent_at + UNCHANGED_S):
                continue
            answer, is_accepted = self._send(server, status, LIMIT_S)
            if not is_accepted:
                failure_count += 1
                pause_s = find_pause_s(answer, failure_count)
            else:
                sent, sent_at, failure_count = status, time.monotonic(), 0
        status = self._make_last_status()
        if status is not None:
            self._send(server, status, 0.9 * END_LIMIT_S, is_last=True)

    def _send(
        self, server: StatusServer, status: TrainerStatus, limit_s: float, *, is_last: bool = False
    ) -> tuple[HttpResponse | None, bool]:
        """Return the answer, None if there was none, and whether it accepts the status; say what is wrong."""
        answer = None
        try:
            answer = post(server, status.encode(time.time()), limit_s)
            kind, problem = str(answer.status), describe_refusal(answer, server.token_file)
        except NoAnswer as error:
            kind, problem = error.kind, str(error)
        except Exception as error:  # none may end the thread, and its text might hold what is secret
            kind, problem = type(error).__name__, f"cannot be asked: {type(error).__name__}"
        if problem:
            what = "the last state was not accepted: " if is_last else ""
            self._complain(f"last {kind}" if is_last else kind, f"{what}the Trainer's server {problem}")
        return answer, not problem

    def _make_status(self, now: float) -> TrainerStatus | None:
        """Return the state of the round that runs here with rank 0; None if there is none."""
        with self._lock:
            current = self._round if self._is_running else None
            if current is None:
                return None
            own = self._list_own_metrics(current)
        self._read_page(current.round)
        total, remaining_s = self._figures.total, None
        if total > 0 and self._last_step >= 0:
            remaining_s = estimate_remaining_s(self._samples, self._last_step, total, now)
        return self._compose(own, remaining_s, is_done=False)

    def _make_last_status(self) -> TrainerStatus | None:
        """Return the state at the end of the job, if rank 0 was here at the last; None if it was not.

        After any other end of a round another node may have had rank 0, and a later word than this one's.
        """
        with self._lock:
            last, verdict = self._round, self._last_verdict
            is_last = self._last_cause in (("end",) if verdict == "success" else ("end", "failure"))
            own = self._list_own_metrics(last) if last is not None else []
        if last is None or not verdict or not is_last:
            return None
        self._read_page(last.round)  # the page outlives the workers
        return self._compose(own, 0 if verdict == "success" else None, is_done=verdict == "success")

    def _list_own_metrics(self, current: RoundStarted) -> list[tuple[str, str]]:
        goodput = compute_goodput(self._timeline.rounds, self._timeline.before, time.time())
        return [
            ("round", str(current.round)),
            ("world_size", str(current.world_size)),
            ("restarts", str(current.restart_count)),
            ("goodput", f"{goodput.ratio:.2f}"),
        ]

    def _read_page(self, round_number: int) -> None:
        """Read what the workers of this round have said; what is damaged leaves what was known."""
        if self._rate_round != round_number:
            self._rate_round, self._last_step = round_number, -1
            self._samples.clear()
        if self._page is None:
            return
        steps = self._page.read_steps()
        self._last_step = max([self._last_step, *steps])
        found = Figures(round=round_number)
        for line in range(1, 1 + len(steps)):
            with suppress(RecordError):
                own = codec.decode(Figures, read_figures(self._page.descriptor, line) or "{}", "figures of a worker")
                if own.round == round_number:
                    found = replace(found, metrics=found.metrics | own.metrics, total=own.total or found.total)
        if found.metrics or found.total:
            self._figures = found

    def _compose(self, own: list[tuple[str, str]], remaining_s: int | None, *, is_done: bool) -> TrainerStatus:
        total, step_count = self._figures.total, self._last_step + 1
        percentage = min(100, 100 * step_count // total) if total > 0 and step_count > 0 else None
        theirs = self._figures.metrics
        metrics = [*((name, value) for name, value in own if name not in theirs), *theirs.items()]
        kept, remark = limit_metrics(metrics)
        if remark:
            self._complain("metrics", remark)
        return TrainerStatus(percentage=100 if is_done else percentage, remaining_s=remaining_s, metrics=kept)

    def _complain(self, kind: str, problem: str) -> None:
        """Say it, unless one of this kind has been said."""
        if kind not in self._complaints and len(self._complaints) < _COMPLAINTS_MAX:
            self._complaints.add(kind)
            self._warn(f"{_LABEL}: {problem}")
