"""Values as JSON: what a second thread must not meet. What is refused is in test_records_hostile.py."""

from __future__ import annotations

import pytest
from msgspec import Struct
from msgspec.json import Decoder

from rendezvous import codec


class Inner(Struct):
    number: int


class Outer(Struct):
    inner: Inner


@pytest.mark.parametrize("way", ["decode", "convert"])
def test_a_decoder_is_made_once_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Two threads that make the first ones of a struct crash: the type's description is read half done."""
    made: list[tuple[object, bool]] = []

    def make(kind: object) -> Decoder[object]:
        made.append((kind, codec._making.locked()))
        return Decoder(kind)  # type: ignore[arg-type]

    monkeypatch.setattr(codec, "_decoders", {})
    monkeypatch.setattr(codec, "Decoder", make)
    for _ in range(2):
        if way == "decode":
            assert codec.decode(Outer, b'{"inner":{"number":1}}', "it") == Outer(Inner(1))
        else:
            assert codec.convert(Outer, {"inner": {"number": 1}}, "it") == Outer(Inner(1))
    assert made == [(Outer, True)]
    assert not codec._making.locked()
