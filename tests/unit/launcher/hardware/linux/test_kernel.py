"""Naming the process that may trace this one: only Yama knows the call, and this machine may be without it."""

from __future__ import annotations

import ctypes
import os
from errno import EINVAL, EPERM

import pytest

from launcher.hardware.linux import kernel


class _Library:
    def __init__(self, number: int) -> None:
        self.number = number
        self.calls: list[tuple[int, ...]] = []

    def prctl(self, *words: int) -> int:
        self.calls.append(words)
        ctypes.set_errno(self.number)
        return -1 if self.number else 0


@pytest.mark.parametrize("number", [0, EINVAL], ids=["with Yama", "without"])
def test_the_tracer_is_named_where_the_kernel_knows_the_call(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    library = _Library(number)
    monkeypatch.setattr(kernel, "_LIBC", library)
    kernel.allow_tracing_by(4711)
    assert library.calls == [(0x59616D61, 4711, 0, 0, 0)]  # "Yama", include/uapi/linux/prctl.h


def test_another_refusal_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_LIBC", _Library(EPERM))
    with pytest.raises(PermissionError):
        kernel.allow_tracing_by(4711)


def test_this_kernel_knows_the_call_or_does_without() -> None:
    kernel.allow_tracing_by(os.getpid())
