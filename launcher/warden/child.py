"""What a worker does between fork and exec.

Here a mistake is quiet and lasting: whatever is open, blocked or ignored now stays so in the user's program. The
order matters too: the parent-death signal comes before anything that can take time, and signals are let through
last, when a SIGTERM ends the worker as it should.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from errno import EINVAL, ENOENT
from typing import NoReturn

from launcher.warden import WorkerSpec, kernel


def become(
    spec: WorkerSpec,
    environment: dict[bytes, bytes],
    *,
    answer: int,
    keep: tuple[int, ...],
    warden_pid: int,
    highest_descriptor: int,
    changed_signals: Iterable[int],
) -> NoReturn:
    """Turn this freshly forked process into the worker, or write (sentence, errno) as JSON to `answer` and exit.

    `environment` is the warden's own, changed in place as the spec asks.
    """
    attempt = f"cannot start the worker of local rank {spec.local_rank}"
    try:
        os.setsid()
        kernel.signal_on_parent_death(signal.SIGKILL)
        if os.getppid() != warden_pid:  # the warden died before the line above
            os._exit(127)
        if spec.stdout is not None:
            os.dup2(spec.stdout, 1)
        if spec.stderr is not None:
            os.dup2(spec.stderr, 2)
        # By hand: until the exec has succeeded, which may take its time, close-on-exec does nothing, and an open
        # socket here would hide the warden's end from the agent, an open pipe another worker's from its reader.
        close_all_but((answer, *keep), highest_descriptor)
        if spec.affinity is not None:
            attempt = f"cannot keep the worker of local rank {spec.local_rank} to its CPUs"
            os.sched_setaffinity(0, spec.affinity)
        if spec.memory:
            from launcher.warden import memory  # the warden has loaded it

            with suppress(OSError):  # the agent has tried it; a worker far from its memory is slow and not wrong
                memory.prefer(spec.memory)
        for name in spec.unset:
            environment.pop(os.fsencode(name), None)
        environment.update((os.fsencode(name), os.fsencode(value)) for name, value in spec.env.items())
        for signum in changed_signals:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        attempt = f"cannot run {spec.argv[0][:200]!r}"  # the answer is one atomic write, at most 4096 bytes
        _execute([os.fsencode(word) for word in spec.argv], environment)
    except OSError as error:
        number = error.errno or EINVAL
        os.write(answer, json.dumps((f"{attempt}: {os.strerror(number)}", number)).encode())
    except Exception as error:  # a zero byte in an argument, "=" in the name of a variable, or a bug of ours
        os.write(answer, json.dumps((f"{attempt}: {str(error)[:200]}", EINVAL)).encode())
    finally:
        os._exit(127)


def close_all_but(keep: Iterable[int], highest: int) -> None:
    """Close every descriptor from 3 to `highest` but these."""
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = max(first, descriptor + 1)
    os.closerange(first, highest + 1)


def _execute(argv: list[bytes], environment: dict[bytes, bytes]) -> None:
    """Run a program, searched on the PATH of its environment when it has no slash. Returns only by an OSError."""
    if b"/" in argv[0]:
        os.execve(argv[0], argv, environment)
    failure: OSError = FileNotFoundError(ENOENT, "")
    for folder in environment.get(b"PATH", os.defpath.encode()).split(b":"):
        try:
            os.execve(os.path.join(folder or b".", argv[0]), argv, environment)
        except (FileNotFoundError, NotADirectoryError):  # noqa: PERF203 - look in the next folder
            continue
        except PermissionError as error:
            failure = error
    raise failure
