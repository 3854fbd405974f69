"""One node of a training job: devices in, plan, processes out.

    from launcher import launch

    results = launch(train, config, nproc=8)  # a function in eight workers of this machine, and what each returned

Importing this package costs nothing; `launch` is loaded when it is first asked for.
"""

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from launcher.functions.calling import launch
    from launcher.functions.failed import WorkerFailed

__version__ = "0.1.0"
__all__ = ["WorkerFailed", "__version__", "launch"]

_HOMES = {"launch": "launcher.functions.calling", "WorkerFailed": "launcher.functions.failed"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
