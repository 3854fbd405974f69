"""How workers are started, and stopped, under JAX: through `as_main`, and without a signal once one has failed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import command
from launcher.agent.membership import make_settings
from launcher.config.config import Config
from launcher.logs.layout import LogLayout
from launcher.logs.pump import OutputPump
from launcher.model.errors import ShortageError, UsageError
from launcher.model.node import Device, Slot
from launcher.placement.adapter.description import NodeAssignment
from launcher.ranks import as_main
from launcher.ranks.spec_builder import RECORDER_VARIABLE, WorkerSpecBuilder, make_recorder_variables
from launcher.supervisor.messages import WorkerSpec
from launcher.worker import recorder

SHARE = NodeAssignment(
    ranks=(0,), world_size=1, shape=(1,), group_rank=0, group_world_size=1, role_ranks=(0,), role_world_size=1,
    master_addr="127.0.0.1", master_port=29500,
)  # fmt: skip
CPU = Slot(index=0, devices=(Device(kind="cpu", index=0, id="cpu0", visible=""),))


def make_builder(
    config: Config, log_dir: str = "/dev/null", parent: Mapping[str, str] | None = None
) -> WorkerSpecBuilder:
    return WorkerSpecBuilder(
        workers=config.workers, output=config.output, placement=config.placement, slots=[CPU], host="h1",
        layout=LogLayout(log_dir=log_dir, run_id="job"), parent=parent or {},
    )  # fmt: skip


def worker(*words: str, parent: Mapping[str, str] | None = None, python: str = "") -> WorkerSpec:
    config = command.parse(words, {**(parent or {}), "PYTHON_EXEC": python})
    maker = make_builder(config, parent=parent)
    assert maker.is_jax == (config.workers.framework == "jax")
    (spec,) = maker.make_specs(1, 0, SHARE, None)
    return spec


class FullPump(OutputPump):
    """A pump that has descriptors for files, and for some streams."""

    left = 1

    def open_stream(self, **given: Any) -> int:
        self.left -= 1
        if self.left < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().open_stream(**given)


@pytest.mark.parametrize("left", [0, 1])
def test_streams_that_cannot_all_be_opened_leave_none_open(tmp_path: Path, left: int) -> None:
    config = command.parse(("--tee=3", "--duplicate-stdout-filters=found", "train.py"), {})
    maker = make_builder(config, str(tmp_path))
    with ExitStack() as stack:
        pump = FullPump(warn=print)
        stack.callback(pump.close)
        before = len(os.listdir("/proc/self/fd"))
        pump.left = left
        with pytest.raises(ShortageError, match=r"cannot prepare 1 worker: Too many open files"):
            maker.make_specs(1, 0, SHARE, pump)
        assert pump.drain(20.0)
        assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("words", "how"),
    [
        (("train.py", "--lr", "1"), ("script", "train.py", "--lr", "1")),
        (("-m", "train.main", "-a"), ("module", "train.main", "-a")),
        (("--run-path", "train.py"), ("path", "train.py")),
    ],
)
def test_a_script_is_started_by_way_of_as_main(words: tuple[str, ...], how: tuple[str, ...]) -> None:
    assert worker("--framework=jax", *words).argv == (sys.executable, "-u", as_main.__file__, "jax", *how)
    assert worker("--framework=torch", *words).argv == (sys.executable, "-u", as_main.__file__, *how)


def test_programs_are_started_unchanged_and_an_unknown_framework_is_refused() -> None:
    assert worker("--framework=jax", "-").argv == (sys.executable, "-u", "-")
    assert worker("--framework=jax", "--no-python", "train.sh").argv == ("train.sh",)
    assert worker("--framework=torch", "train.py", python="/opt/python").argv == ("/opt/python", "-u", "train.py")
    with pytest.raises(UsageError, match="--framework trch: no installed package has a plug-in trch"):
        worker("--framework=trch", "train.py")


def test_what_was_inherited_of_mpirun_gives_way_and_the_hook_comes_first() -> None:
    step = {"OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://192.0.2.1:34911", "OMPI_COMM_WORLD_RANK": "5"}
    under_jax, under_torch = (worker(f"--framework={name}", "train.py", parent=step) for name in ("jax", "torch"))
    assert under_jax.env["OMPI_COMM_WORLD_RANK"] == "0"
    assert not any(name.startswith("OMPI_") for name in under_torch.env)
    assert set(step) <= set(under_jax.unset) & set(under_torch.unset)
    spec = worker("--framework=torch", "train.py", parent={"PYTHONPATH": "a:b", "LAUNCHER_HANG_EVIDENCE": "1"})
    assert spec.env["PYTHONPATH"].split(":")[1:] == ["a", "b"]
    assert (Path(spec.env["PYTHONPATH"].split(":")[0]) / "sitecustomize.py").exists()
    assert "PYTHONPATH" not in worker("--framework=torch", "train.py", parent={"PYTHONPATH": "a:b"}).env


def test_the_flight_recorder_is_readable_unless_it_is_off() -> None:
    assert recorder.VARIABLE == RECORDER_VARIABLE
    spec = worker("--framework=torch", "train.py")
    assert spec.env["TORCH_FR_BUFFER_SIZE"] == "2000"
    assert spec.env[recorder.VARIABLE].endswith("/1.0")
    old = worker("--framework=torch", "train.py", parent={"TORCH_NCCL_TRACE_BUFFER_SIZE": "9"})
    assert "TORCH_FR_BUFFER_SIZE" not in old.env
    assert recorder.VARIABLE in old.env
    off = worker("--framework=torch", "train.py", parent={"TORCH_FR_BUFFER_SIZE": "0", recorder.VARIABLE: "/outer"})
    under_jax = worker("--framework=jax", "train.py", parent={recorder.VARIABLE: "/outer"})
    for none in (off, under_jax):
        assert not {"TORCH_FR_BUFFER_SIZE", recorder.VARIABLE} & set(none.env)
        assert recorder.VARIABLE in none.unset


@pytest.mark.parametrize(
    ("kinds", "parent", "value"),
    [({"nvidia"}, {}, "1"), ({"nvidia"}, {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, None), ({"cpu"}, {}, None)],
)
def test_nccl_is_asked_for_a_dump_at_a_time_out(kinds: set[str], parent: dict[str, str], value: str | None) -> None:
    assert make_recorder_variables("/x", kinds, parent).get("TORCH_NCCL_DUMP_ON_TIMEOUT") == value


def test_the_recorder_has_a_socket_unless_that_is_switched_off() -> None:
    assert worker("--framework=torch", "train.py").env["LAUNCHER_RECORDER_SOCKET"]
    off = worker("--framework=torch", "train.py", parent={"LAUNCHER_HANG_EVIDENCE": "0"})
    assert "LAUNCHER_RECORDER_SOCKET" not in off.env


def test_after_a_failure_jax_gets_no_grace_and_at_a_stop_all_of_it() -> None:
    asked = (command.parse(["train.py"], {}).rendezvous, 0, 40.0)
    under_jax, under_torch = make_settings(*asked, handles_sigterm=False), make_settings(*asked)
    assert (under_jax.get_grace_s("kill"), under_jax.get_grace_s("grace")) == (0, 40)
    assert (under_torch.get_grace_s("kill"), under_torch.get_grace_s("grace")) == (5, 40)


PLUGIN = """
class Environment:
    def variables(self, place, parent):
        return {answer}
"""


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("{'MY_RANK': str(place.rank), 'RANK': 'mine'}", {"MY_RANK": "0", "RANK": "mine"}),
        ("{'MY_RANK': place.rank}", "'MY_RANK': 0 is not a variable name and its text"),
        ("{'A=B': ''}", "'A=B': '' is not a variable name and its text"),
        ("None", "must return dict, not NoneType"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_the_environment_of_another_package_is_used_with_care(
    answer: str, outcome: dict[str, str] | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"plugin_{abs(hash(answer))}"
    (tmp_path / f"{package}.py").write_text(PLUGIN.format(answer=answer))
    information = tmp_path / f"{package}-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[meshrun.environments]\nmine = {package}:Environment\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if isinstance(outcome, dict):
        assert outcome.items() <= worker("--framework=mine", "train.py").env.items()
        return
    with pytest.raises(UsageError, match=outcome) as refused:
        worker("--framework=mine", "train.py")
    assert f"the plug-in mine of {package} 1.0" in str(refused.value)
