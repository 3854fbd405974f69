"""Values for the processes that are forked before msgspec is imported: keeper and supervisor.

What they load the agent's other processes load too, and each page that one of them changes exists once more. msgspec
would cost them 2 MiB, and the fork would come 20 ms of CPU later. So their few messages are plain classes: fields are
the annotations, by position or by name; a class attribute is a default; values of one class with equal fields are
equal. Nothing checks fields or types: these values never come from another program, and mypy reads every call.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, ClassVar

    from typing_extensions import Self, dataclass_transform
else:

    def dataclass_transform(**_):
        return lambda cls: cls


@dataclass_transform(frozen_default=True)
class PlainValue:
    """The base of such a class. Its objects are not changed once they are made."""

    if TYPE_CHECKING:
        _fields: ClassVar[tuple[str, ...]]
    else:  # they follow from what dataclass_transform says

        def __init_subclass__(cls):
            cls._fields = cls.__match_args__ = tuple(cls.__annotations__)

        def __init__(self, *values, **named):
            self.__dict__.update(zip(self._fields, values, strict=False), **named)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, in their order."""
        return {name: getattr(self, name) for name in self._fields}

    def as_tuple(self) -> tuple[Any, ...]:
        return tuple(self.as_dict().values())

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values in some fields."""
        return type(self)(**{**self.as_dict(), **changes})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.as_tuple() == self.as_tuple()

    def __hash__(self) -> int:
        return hash(self.as_tuple())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.as_dict().items())})"
