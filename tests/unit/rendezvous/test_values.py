"""Our dataclasses and named tuples behave as the library's, whose types they pretend to be."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Mapping
from typing import Any
from typing import NamedTuple as TheirTuple

import pytest

from rendezvous import values
from rendezvous.values import NamedTuple


class Ours(NamedTuple):
    """A place."""

    name: str
    ranks: tuple[int, ...] = ()
    port: int = 0

    @property
    def rank_count(self) -> int:
        return len(self.ranks)


class Theirs(TheirTuple):
    name: str
    ranks: tuple[int, ...] = ()
    port: int = 0


@values.dataclass(frozen=True, kw_only=True)
class Seal:
    round: int
    mesh: str = "dp"
    unknown: Mapping[str, Any] = values.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.round < 0:
            raise ValueError("no such round")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TheirSeal:
    round: int
    mesh: str = "dp"
    unknown: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "named"),
    [(("a",), {}), (("a", (1,), 2), {}), (("a",), {"port": 3}), ((), {"port": 3, "name": "b"}), (("a", (1,)), {})],
)
def test_a_named_tuple_is_made_by_place_and_by_name(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    ours, theirs = Ours(*given, **named), Theirs(*given, **named)
    assert tuple(ours) == tuple(theirs)
    assert repr(ours).replace("Ours", "Theirs") == repr(theirs)
    assert ours._asdict() == theirs._asdict()
    assert ours._replace(port=9) == theirs._replace(port=9)
    assert (ours.name, ours.ranks, ours.port) == tuple(theirs)
    assert ours.rank_count == len(theirs.ranks)
    assert copy.copy(ours) == pickle.loads(pickle.dumps(ours)) == ours
    assert hash(ours) == hash(theirs)


@pytest.mark.parametrize(
    ("given", "named"),
    [((), {}), (("a", (), 1, 2), {}), (("a",), {"name": "b"}), (("a",), {"prot": 1}), ((), {"port": 1, "prot": 1})],
)
def test_a_named_tuple_of_other_fields_is_refused(given: tuple[Any, ...], named: dict[str, Any]) -> None:
    for kind in (Theirs, Ours):
        with pytest.raises(TypeError):
            kind(*given, **named)


def test_a_named_tuple_says_what_it_is_made_of() -> None:
    assert Ours._fields == Ours.__match_args__ == Theirs._fields
    assert Ours._field_defaults == Theirs._field_defaults
    assert (Ours.__doc__, Ours.__slots__) == ("A place.", ())
    match Ours("a", (1, 2)):
        case Ours(name, ranks):
            assert (name, ranks) == ("a", (1, 2))
    with pytest.raises(AttributeError):
        Ours("a").port = 1  # type: ignore[misc]


def test_a_dataclass_is_equal_hashed_and_shown_as_the_library_s() -> None:
    one, other = Seal(round=1), Seal(round=1, mesh="dp", unknown={})
    assert one == other
    assert one != Seal(round=2)
    assert one != TheirSeal(round=1)
    assert repr(one) == repr(TheirSeal(round=1)).replace("TheirSeal", "Seal")
    assert one.unknown is not other.unknown
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)
    assert hash(Seal(round=1, unknown=())) == hash(TheirSeal(round=1, unknown=()))  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one


@pytest.mark.parametrize("replace", [values.replace, dataclasses.replace])
def test_a_dataclass_is_replaced_and_checked_again(replace: Callable[..., Seal]) -> None:
    assert replace(Seal(round=1, unknown={"a": 1}), mesh="tp") == Seal(round=1, mesh="tp", unknown={"a": 1})
    with pytest.raises(ValueError, match="no such round"):
        replace(Seal(round=1), round=-1)
    with pytest.raises(TypeError):
        replace(Seal(round=1), rounds=2)


@pytest.mark.parametrize("named", [{}, {"mesh": "tp"}, {"round": 1, "rounds": 2}])
def test_a_dataclass_of_other_fields_is_refused(named: dict[str, Any]) -> None:
    for kind in (TheirSeal, Seal):
        with pytest.raises(TypeError):
            kind(**named)


def test_a_frozen_dataclass_stays_as_it_is() -> None:
    for change in (lambda seal: setattr(seal, "round", 2), lambda seal: delattr(seal, "round")):
        with pytest.raises(AttributeError, match="round"):
            change(Seal(round=1))


def test_the_library_takes_ours_for_its_own() -> None:
    assert dataclasses.is_dataclass(Seal)
    ours, theirs = dataclasses.fields(Seal), dataclasses.fields(TheirSeal)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.name, one.type, one.default_factory) == (other.name, other.type, other.default_factory)
        assert one.default is other.default
    assert dataclasses.asdict(Seal(round=1)) == dataclasses.asdict(TheirSeal(round=1))
    assert [(one.name, str(one.type)) for one in values.fields(Seal)] == [(one.name, one.type) for one in theirs]
    assert values.fields(Seal)[0].default is values.MISSING
