"""The examiner: a short-lived process that looks at this node's workers, so that the agent's loop never waits for it.

    python -m launcher.diagnosis.examiner '{"targets": [{"rank": 0, "pid": 4711}], "limit_s": 5}'

prints an `ExamineReport` as one line of JSON, and has created the incident folder if one was asked for. A disk that
hangs, which may be why the workers do, must not keep the answer: a process of its own writes the folder, and the answer
says if it was late. Everything has a limit; the last one is the kernel's: a timer whose signal ends this process, with
which those that it has started die, too.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence

from launcher.diagnosis.gather import Examined, gather
from launcher.diagnosis.incident import write_incident
from launcher.diagnosis.request import ExamineReport, ExamineRequest, shorten_evidence
from launcher.hardware.linux import kernel, kernel_log
from rendezvous import codec
from rendezvous.errors import EXIT_USAGE, RecordError

GRACE_S = 0.4
_FAULT_AGE_MAX_S, _FAULTS_SHOWN = 3600.0, 4
_GATHER_PART = 0.8  # of the limit, where a folder is to be written, too


def main(words: Sequence[str]) -> int:
    """Examine, print and return the exit code."""
    try:
        request = codec.decode(ExamineRequest, words[0] if words else "", "the request")
    except RecordError as error:
        print(f"meshrun: {error}", file=sys.stderr)
        return EXIT_USAGE
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # no handler: it would wait for Python, which may be in the kernel
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
    signal.setitimer(signal.ITIMER_REAL, request.limit_s + GRACE_S)
    until = time.monotonic() + request.limit_s
    has_folder = bool(request.folder) and request.levels == "all"
    examined = gather(request.targets, request.limit_s * (_GATHER_PART if has_folder else 1), request.levels)
    remarks = list_device_faults() if request.levels == "all" else []
    is_there, sentence = _write_folder(request, examined, until) if has_folder else (False, "")
    ranks = tuple(shorten_evidence(one.evidence) for one in examined)
    folder = request.folder if is_there else ""
    report = ExamineReport(ranks=ranks, folder=folder, remarks=tuple(filter(None, (*remarks, sentence))))
    with open(1, "wb", closefd=False) as output:  # sys.stdout is the supervisor's, and there may be none
        output.write(codec.encode(report) + b"\n")
    return 0


def _write_folder(request: ExamineRequest, examined: Sequence[Examined], until: float) -> tuple[bool, str]:
    """Write the folder in a process of its own, see `write_incident`."""
    own = os.getpid()
    result, end = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        return False, f"the incident folder {request.folder} cannot be written: {error.strerror}"
    if pid == 0:
        try:
            kernel.signal_on_parent_death(signal.SIGKILL)
            os.close(1)  # whoever reads the answer waits for its end
            if os.getppid() == own:
                os.write(end, codec.encode(write_incident(request.folder, request.targets, examined, until)))
        finally:
            os._exit(0)
    os.close(end)
    ready, _, _ = select.select([result], [], [], max(0.0, until - time.monotonic()) + GRACE_S / 2)
    text = os.read(result, 65536) if ready else b""
    if not text:
        return True, f"the incident folder {request.folder} is not complete: its disk does not answer"
    return codec.decode(tuple[bool, str], text, "the folder's writer")


def list_device_faults(path: str = kernel_log.DEVICE) -> list[str]:
    """Return the last Xid messages of the last hour; none where the kernel's log cannot be read.

    They tell a device's fault before any library does.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        # "6,1234,5678901234,-;NVRM: Xid (PCI:0000:3b:00): 79, ...": the third are microseconds since boot.
        lines = [line.partition(";") for text in kernel_log.read_records(descriptor) for line in text.split("\n")]
    finally:
        os.close(descriptor)
    oldest = (time.monotonic() - _FAULT_AGE_MAX_S) * 1e6
    faults = [text for head, _, text in lines if text.startswith("NVRM: Xid") and int(head.split(",")[2]) > oldest]
    return [f"the kernel says: {text[:160]}" for text in faults[-_FAULTS_SHOWN:]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
