"""Importing msgspec at a third of its cost: 17 ms of CPU less before the first worker, and 1.3 MiB.

Most of what `import msgspec` costs is not msgspec: typing_extensions, of which it takes nothing that `typing` lacks,
with `inspect` and `ast` behind it; `platform`, of which `uuid` asks one thing under Linux; Python's text of `datetime`,
whose classes are C's; and parts of msgspec that describe types. For the time of that import others stand in for these.
None of them changes what msgspec or `uuid` do: the parts are loaded when they are first used. tests/cli/test_start.py
counts what is loaded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's constant without importing typing; type checkers know the name
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

_PARTS = ("inspect", "msgpack", "toml", "yaml")


class _LatePart(ModuleType):
    """A part of msgspec that is imported when something of it is used."""

    def __getattr__(self, name: str) -> Any:
        import importlib

        return getattr(importlib.import_module(self.__name__), name)


def import_msgspec() -> None:
    """Import msgspec, unless it is imported already."""
    if "msgspec" in sys.modules:
        return
    import _datetime  # type: ignore[import-not-found]  # C's classes, which datetime takes over

    platform = ModuleType("platform")
    platform.system = lambda: "Linux"  # type: ignore[attr-defined]
    schemas = ModuleType("msgspec._json_schema")
    schemas.schema = _call_late("schema")  # type: ignore[attr-defined]
    schemas.schema_components = _call_late("schema_components")  # type: ignore[attr-defined]
    others: dict[str, ModuleType | None] = {
        "typing_extensions": None,  # as if it were not installed
        "platform": platform,
        "datetime": _datetime,
        "msgspec._json_schema": schemas,
        **{name: _LatePart(name) for name in (f"msgspec.{part}" for part in _PARTS)},
    }
    stand_ins = {name: other for name, other in others.items() if name not in sys.modules}
    sys.modules.update(stand_ins)  # type: ignore[arg-type]  # None is how Python marks a module that is not there
    try:
        import msgspec  # noqa: F401
    finally:
        for name in stand_ins:
            del sys.modules[name]


def _call_late(name: str) -> Any:
    def call(*values: Any, **options: Any) -> Any:
        from msgspec import _json_schema

        return getattr(_json_schema, name)(*values, **options)

    return call
