"""Naming the process that may trace this one: only Yama knows the call, and this machine may be without it."""

from __future__ import annotations

import os
from errno import EINVAL, EPERM

import pytest

from launcher.hardware.linux import kernel


class _Calls(list[tuple[object, ...]]):
    """Calls that are noted and fail with this error number, if there is one."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def __call__(self, *words: object) -> int:
        self.append(words)
        if self.number:
            raise OSError(self.number, os.strerror(self.number))
        return 0


@pytest.mark.parametrize("number", [0, EINVAL, EPERM], ids=["with Yama", "without", "refused by a filter"])
def test_the_tracer_is_named_where_the_kernel_allows_it(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = _Calls(number)
    monkeypatch.setattr(kernel, "_call", calls)
    kernel.allow_tracing_by(4711)
    assert calls == [("prctl", 0x59616D61, 4711, 0, 0, 0)]  # "Yama", include/uapi/linux/prctl.h


def test_this_kernel_knows_the_call_or_does_without() -> None:
    kernel.allow_tracing_by(os.getpid())
