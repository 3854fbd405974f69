"""A script that writes down all that it can see of itself, as JSON, to the file that PROBED names.

It is run cold and warm; what differs is what a forked worker is not told, or not given, as one started by Python.
"""

import sys

EARLY = sorted(sys.modules)
IMPORTERS = sorted(sys.path_importer_cache)
GLOBALS = {name: repr(value) for name, value in globals().items() if name.startswith("__")}
ATTRIBUTES = sorted(vars(sys))

import atexit  # noqa: E402
import builtins  # noqa: E402
import faulthandler  # noqa: E402
import gc  # noqa: E402
import inspect  # noqa: E402
import json  # noqa: E402
import linecache  # noqa: E402
import locale  # noqa: E402
import multiprocessing  # noqa: E402
import os  # noqa: E402
import pickle  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import types  # noqa: E402
import warnings  # noqa: E402


class Own:
    pass


def double(number: int) -> int:
    return 2 * number


def stream(name: str) -> list[object]:
    text = getattr(sys, name)
    raw = getattr(text.buffer, "raw", text.buffer)
    shown = [repr(text), repr(text.buffer), text.encoding, text.errors, getattr(text, "mode", None), raw._blksize]
    is_original = text is getattr(sys, f"__{name}__")
    return [*shown, text.line_buffering, text.write_through, text.isatty(), text.seekable(), is_original]


def status() -> dict[str, str]:
    with open("/proc/self/status") as file:
        lines = {line.partition(":\t")[0]: line.partition(":\t")[2].rstrip() for line in file}
    wanted = ("Umask", "Uid", "Threads", "SigBlk", "SigIgn", "SigCgt", "CapEff", "NoNewPrivs", "Seccomp", "Name")
    return {name: lines[name] for name in wanted if name in lines}


def descriptors() -> list[tuple[int, str]]:
    found = []
    for number in sorted(map(int, os.listdir("/proc/self/fd"))):
        try:
            found.append((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # noqa: PERF203 - that of the listing
            continue
    return found


def facts() -> dict[str, object]:
    main = sys.modules["__main__"]
    site = sys.modules["site"]
    with open("/proc/self/cmdline") as file:
        command = file.read().split("\0")
    with open("/proc/self/environ", errors="surrogateescape") as file:
        environment = sorted(file.read().split("\0"))
    return {
        "modules": EARLY,
        "modules with our names": [name for name in sys.modules if "launcher" in name or "sitecustom" in name],
        "importers": IMPORTERS,
        "globals of __main__": GLOBALS,
        "__main__": [
            vars(main) is globals(),
            repr(main.__spec__),
            type(main.__loader__).__name__,
            sys.getrefcount(main),
        ],
        "attributes of sys": ATTRIBUTES,
        "words": [sys.argv, sys.orig_argv],
        "command line": command,
        "path": sys.path,
        "path hooks": [type(hook).__name__ for hook in (*sys.path_hooks, *sys.meta_path)],
        "flags": [repr(sys.flags), repr(sys._xoptions), sys.warnoptions, sys.dont_write_bytecode, sys.pycache_prefix],
        "warnings": repr(warnings.filters),
        "python": [sys.executable, os.readlink("/proc/self/exe"), sys.prefix, sys.exec_prefix, sys.base_prefix],
        "site": [site.ENABLE_USER_SITE, site.PREFIXES, site.USER_SITE, site.USER_BASE],
        "environment": list(os.environ.items()),
        "environment of the process": environment,
        "kernel's view": status(),
        "place": [os.getcwd(), os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), os.nice(0)],
        "cpus": sorted(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
        "descriptors": descriptors(),
        "signals": [[int(number), repr(signal.getsignal(number))] for number in sorted(signal.valid_signals())],
        "streams": [stream(name) for name in ("stdin", "stdout", "stderr")],
        "stack": [frame.f_code.co_name for frame, _ in traceback_of_here()],
        "source": [inspect.getsource(double), linecache.getline(__file__, 1)],
        "pickle": repr(pickle.dumps(Own())),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "frozen": gc.get_freeze_count() > 0,
        "our functions": sum("forkserver" in thing.__code__.co_filename for thing in functions()),
        "threads": [thread.name for thread in threading.enumerate()],
        "main thread": [
            threading.main_thread().native_id == os.getpid(),
            threading.main_thread().ident == threading.get_ident(),
        ],
        "multiprocessing": [
            multiprocessing.get_start_method(allow_none=True),
            multiprocessing.current_process().name,
            multiprocessing.parent_process(),
        ],
        "hooks": [repr(hook) for hook in (sys.excepthook, sys.displayhook, sys.unraisablehook, threading.excepthook)],
        "last error": [hasattr(sys, "last_value"), repr(sys.exc_info())],
        "tracing": [sys.gettrace(), sys.getprofile(), sys.getrecursionlimit(), sys.getswitchinterval()],
        "exit handlers": atexit._ncallbacks(),
        "faulthandler": faulthandler.is_enabled(),
        "locale": [locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(), sys.getfilesystemencoding()],
        "builtins": sorted(vars(builtins)),
        "hash": hash("text") if "PYTHONHASHSEED" in os.environ else None,
        "temporary directory": tempfile.gettempdir(),
        "cpu time is little": time.process_time() < 60,
        "children": [start_methods(name) for name in ("spawn", "forkserver", "fork") if "pools" in sys.argv],
    }


def traceback_of_here() -> list[tuple[types.FrameType, int]]:
    import traceback

    return list(traceback.walk_stack(None))


def functions() -> list[types.FunctionType]:
    return [thing for thing in gc.get_objects() if type(thing) is types.FunctionType]


def start_methods(name: str) -> list[int]:
    with multiprocessing.get_context(name).Pool(1) as pool:
        return pool.map(double, [1, 2])


if __name__ == "__main__":
    found = facts()
    with open(os.environ["PROBED"], "w") as file:
        json.dump(found, file)
