"""Skip tests of libraries that are not installed, without an import, which takes seconds for torch and JAX."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(module: str) -> pytest.MarkDecorator:
    """For tests whose workers import it. JAX is missing on Python 3.10."""
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")
