"""One node of a training job: devices in, plan, processes out.

    from launcher import launch

    results = launch(train, config, nproc=8)  # a function in eight workers of this machine, and the results

Importing this package costs nothing; `launch` is loaded on first use.
"""

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from launcher.calls.failure import WorkerFailed
    from launcher.calls.launch import launch
    from launcher.model.errors import LauncherError, TemporaryError, UsageError
    from rendezvous import __version__

__all__ = ["LauncherError", "TemporaryError", "UsageError", "WorkerFailed", "__version__", "launch"]

_HOMES = {
    "launch": "launcher.calls.launch",
    "WorkerFailed": "launcher.calls.failure",
    "LauncherError": "launcher.model.errors",
    "TemporaryError": "launcher.model.errors",
    "UsageError": "launcher.model.errors",
    "__version__": "rendezvous",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found = getattr(import_module(_HOMES[name]), name)
    except ImportError as error:
        from launcher.extensions import ask

        raise ask("hidden", error) from error.__cause__
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
