"""What is checked before Ray is asked for anything."""

from __future__ import annotations

import pytest

from launcher.hosts.ray.cluster import require_version
from launcher.model.errors import UsageError


@pytest.mark.parametrize("version", ["2.51.0", "2.60.0", "3.0.0.dev0", "2.100.1"])
def test_newer_versions_are_accepted(version: str) -> None:
    require_version(version)


@pytest.mark.parametrize("version", ["2.50.1", "2.9.3", "1.13.0", "", "unknown"])
def test_older_versions_are_refused(version: str) -> None:
    with pytest.raises(UsageError, match=r"needs Ray 2\.51 or newer"):
        require_version(version)
