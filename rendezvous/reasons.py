"""Why something is decided, as a value: a kind and the facts, so that code never reads a sentence.

A kind is a few lower-case words with hyphens between them. The program above has kinds of its own, with the name of the
package and a slash in front. The text that people read is made by rendezvous/sentences.py, of the program's kinds by
launcher/model/sentences.py, and by nothing else.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Union

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

TEXT_MAX = 2000
"""Characters of a text in a reason. A longer one is cut where the reason is made, and refused from the store."""
PARTS_MAX = 100
"""Values of a reason, parts of a list in it, and reasons that are added to it."""
DEPTH_MAX = 16
"""How deep reasons may be in each other. What is deeper loses its values: others write to the store, too."""

Text = Annotated[str, Meta(max_length=TEXT_MAX)]
Kind = Annotated[str, Meta(max_length=64)]
Value = Union[bool, int, float, Text, tuple[Text, ...], "Reason"]
# Evaluated here: an annotation that is text is compiled on the way to the first worker.


class Reason(Struct, frozen=True, omit_defaults=True):
    """Why something is decided or happened."""

    kind: Kind
    values: Annotated[Mapping[str, Value], Meta(max_length=PARTS_MAX)] = {}
    """The facts, by the names that the kind's sentence has for them. Numbers must be finite."""
    also: Annotated[tuple["Reason", ...], Meta(max_length=PARTS_MAX)] = ()
    """Further reasons, which follow in the same sentence."""

    @classmethod
    def of(cls, kind: str, **values: Value) -> "Reason":
        """Make a reason; a long text or list in it is cut, or no agent could read a record with it."""
        return cls(kind, {name: _cut(value) for name, value in values.items()})

    def add(self, *others: "Reason") -> "Reason":
        """Return this reason with further ones, each once."""
        also = [*self.also]
        also += [other for index, other in enumerate(others) if other not in (self, *also, *others[:index])]
        return replace(self, also=tuple(also[:PARTS_MAX]))

    def __post_init__(self) -> None:
        if _measure_depth(self) > DEPTH_MAX:
            force_setattr(self, "values", {})
            force_setattr(self, "also", ())

    def __str__(self) -> str:
        """Return the kind and its values, for a trace, and for people where no sentence is known."""
        found = [self.kind, *(f"{name}={_show(value)}" for name, value in self.values.items())]
        return "; ".join((" ".join(found), *map(str, self.also)))


def _cut(value: Value) -> Value:
    if isinstance(value, str):
        return value[:TEXT_MAX]
    return tuple(text[:TEXT_MAX] for text in value[:PARTS_MAX]) if isinstance(value, tuple) else value


def _list_parts(reason: Reason) -> Iterator[Reason]:
    yield from reason.also
    yield from (value for value in reason.values.values() if isinstance(value, Reason))


def _measure_depth(reason: Reason) -> int:
    return 1 + max(map(_measure_depth, _list_parts(reason)), default=0)


def _show(value: Value) -> str:
    match value:
        case Reason():
            return f"({value})"
        case tuple():
            return ",".join(value)
        case float():
            return f"{value:g}"
    return str(value)
