"""What `meshctl measure` refuses before it loads a network."""

from __future__ import annotations

from typing import Any

import pytest

from launcher.extensions.measure import measurement
from launcher.extensions.measure.measurement import MeasureRequest
from launcher.model.errors import UsageError


def make_request(**given: Any) -> MeasureRequest:
    usual = {"run_id": "net", "node_count": 4, "levels": "spine,leaf", "output": None, "as_json": False}
    return MeasureRequest(**{**usual, "insist": False, "wait_s": 1.0, "options": {}, **given})


def test_an_agent_of_this_node_is_not_disturbed_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measurement, "list_running_agents", lambda: [4711])
    with pytest.raises(UsageError, match="an agent runs on this node, and measuring would disturb its job: pid 4711"):
        measurement.run(make_request())
    with pytest.raises(UsageError, match="needs --rdzv-endpoint"):  # the next thing that is missing
        measurement.run(make_request(insist=True))


@pytest.mark.parametrize("levels", ["", "leaf,", "host", "a b"])
def test_levels_need_names(levels: str) -> None:
    with pytest.raises(UsageError, match="is not a list of level names"):
        measurement.run(make_request(levels=levels))
