"""What the preloaded image is made in, and what its forks run: never anything else than a worker by exec."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import pytest

from launcher.agent import command
from launcher.config.config import Config
from launcher.config.scrub import CALL_VARIABLE
from launcher.hardware.cpu_binding import CpuBinding
from launcher.logs.layout import LogLayout
from launcher.model.node import Device, Slot
from launcher.placement.adapter.description import NodeAssignment
from launcher.ranks import as_main, spec_builder
from launcher.ranks.preload_spec import make_fork_server_argv, make_fork_server_spec, predict_slots
from launcher.ranks.spec_builder import WorkerSpecBuilder
from launcher.supervisor.messages import ForkServerSpec, WorkerSpec


def parse(*words: str, **environ: str) -> Config:
    return command.parse(["--preload=torch", *words], environ)


def asked(*options: str) -> Config:
    return parse(*options, "train.py")


def slots(count: int, kind: str = "cpu") -> list[Slot]:
    return [
        Slot(index=index, devices=(Device(kind=kind, index=index, id=f"{kind}{index}", visible=str(index)),))
        for index in range(count)
    ]


def server(config: Config, found: Sequence[Slot], parent: Mapping[str, str]) -> ForkServerSpec:
    return make_fork_server_spec(config.workers, config.placement.grid, config.rendezvous.run_id, found, parent)


def specs(config: Config, found: Sequence[Slot], parent: Mapping[str, str], round: int, first: int) -> list[WorkerSpec]:
    """The workers of a round in which this node has ranks from `first` on, of a world with three more."""
    count, size = len(found), first + len(found) + 3
    grid = config.placement.grid
    ranks = tuple(range(first, first + count))
    share = NodeAssignment(
        ranks=ranks, world_size=size, shape=(size, *(1 for _ in grid.axes[1:])), group_rank=round, group_world_size=4,
        role_ranks=ranks, role_world_size=size, master_addr=f"10.0.0.{round}", master_port=29500 + round,
    )  # fmt: skip
    maker = WorkerSpecBuilder(
        workers=config.workers, output=config.output, placement=config.placement, slots=found, host="h1",
        layout=LogLayout(log_dir="/dev/null", run_id=config.rendezvous.run_id or "drawn"), parent=parent,
    )  # fmt: skip
    return maker.make_specs(round, round - 1, share, None)


@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize(
    "words",
    [
        (), ("--framework=jax",), ("--framework=xla",), ("--rdzv-id=job",), ("--mesh=dp=*,tp=1",),
        ("--device-binding=visible",), ("--virtual-local-rank",),
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("parent", [{}, {"OMP_NUM_THREADS": "3", "PMI_RANK": "2", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}])
def test_the_fork_servers_environment_is_common_to_workers_of_all_rounds(
    words: tuple[str, ...], count: int, parent: dict[str, str]
) -> None:
    config, found = asked(*words), slots(count, "nvidia")[: 4 if parent else 8]
    spec = server(config, found, parent)
    told = [worker for round in (1, 2, 7) for worker in specs(config, found, parent, round, first=5 * round)]
    assert {worker.unset for worker in told} == {spec.unset}
    for worker in told:
        assert spec.env.items() <= worker.env.items()
    for name, value in told[0].env.items():  # and leaves nothing out that all of them say, but what rounds may change
        if all(worker.env.get(name) == value for worker in told) and not name.startswith("MESH_"):
            assert name in spec.env or name in ("TORCHELASTIC_RUN_ID", "GROUP_WORLD_SIZE", "TORCHELASTIC_ERROR_FILE")


def test_the_fork_server_has_as_many_threads_and_processes_as_asked() -> None:
    assert server(asked(), slots(8), {}).env["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in server(asked(), slots(1), {}).env
    assert "OMP_NUM_THREADS" not in server(asked(), slots(8), {"OMP_NUM_THREADS": "4"}).env
    spec = server(asked("--standby=2", "--max-restarts=1", "--preload=a,b.c"), slots(4), {})
    assert (spec.modules, spec.standby) == (("a", "b.c"), 8)


def test_the_fork_server_gets_the_cpus_of_all_bound_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spec_builder.bind_workers(None, slots(2)) == ()
    bindings = (CpuBinding(frozenset({0, 1, 2}), "", 3), CpuBinding(frozenset({4, 5}), "", 2))
    monkeypatch.setattr("launcher.ranks.spec_builder.bind_workers", lambda mode, slots: bindings)
    spec = server(asked("--numa-binding=exclusive"), slots(2), {})
    assert (spec.affinity, spec.env["OMP_NUM_THREADS"]) == (frozenset({0, 1, 2, 4, 5}), "2")


def test_a_fork_server_needs_no_detection_and_holds_for_every_slot() -> None:
    config = asked("--nproc-per-node=4", "--framework=torch")
    early = predict_slots(config.devices.worker_count, config.workers, {})
    assert len(early) == 4
    known = server(config, slots(4), {})
    assert server(config, early, {}) == known.replace(
        env={name: value for name, value in known.env.items() if name != "LAUNCHER_WORKER_DEVICES"}
    )
    # Not only for the first and the last: one worker in the middle may differ.
    spec = server(asked("--device-binding=visible"), slots(3, "nvidia"), {})
    assert "CUDA_VISIBLE_DEVICES" not in spec.env


@pytest.mark.parametrize(
    "words",
    [
        ("--framework=torch",), ("--nproc-per-node=auto", "--framework=torch"),
        ("--nproc-per-node=1", "--framework=torch"), ("--nproc-per-node=4", "--numa-binding=node", "--framework=torch"),
        ("--nproc-per-node=4", "--framework=xla"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_fork_server_that_depends_on_devices_waits_for_their_detection(words: tuple[str, ...]) -> None:
    config = asked(*words)
    assert predict_slots(config.devices.worker_count, config.workers, {}) == ()


@pytest.mark.parametrize(
    ("words", "forked"),
    [
        (("train.py", "--lr", "${local_rank}"), ("script", "train.py", "--lr", "0")),
        (("-m", "train.main", "-a"), ("module", "train.main", "-a")),
        (("--legacy-local-rank", "train.py"), ("script", "train.py", "--local-rank=0")),
    ],
)
def test_a_fork_runs_what_an_exec_would_have_run(words: tuple[str, ...], forked: tuple[str, ...]) -> None:
    (spec,) = specs(parse(*words), slots(1), {}, 1, 0)
    assert spec.fork_argv == ("script", as_main.__file__, *forked)
    assert spec.argv == (sys.executable, "-u", as_main.__file__, *forked)
    config = parse(*words, PYTHON_EXEC="/opt/python")
    (spec,) = specs(config, slots(1), {}, 1, 0)
    assert spec.fork_argv == forked
    plain = {"script": (), "module": ("-m",)}[forked[0]]
    assert spec.argv == ("/opt/python", "-u", *plain, *forked[1:])
    assert make_fork_server_argv(config.workers, is_jax=False)[3:] == forked


def test_by_run_path_and_for_a_function_a_fork_runs_the_same_text() -> None:
    config = parse("--run-path", "train.py", "x", PYTHON_EXEC="/opt/python")
    (spec,) = specs(config, slots(1), {}, 1, 0)
    assert spec.argv[2] == "-c"
    assert spec.fork_argv == ("code", *spec.argv[3:])
    words = ("--no-python", "python3", "-X", "utf8", "-I", "-u", "-c", "import x", "train")
    (spec,) = specs(parse(*words, **{CALL_VARIABLE: "/tmp/call"}), slots(1), {}, 1, 0)
    assert (spec.argv, spec.fork_argv) == (words[1:], ("code", "import x", "train"))
    argv = make_fork_server_argv(parse(*words, **{CALL_VARIABLE: "/tmp/call"}).workers, is_jax=False)
    assert argv[:5] == words[1:6]
    assert argv[6:] == spec.fork_argv


def test_a_fork_of_jax_begins_as_its_workers_begin_and_without_preload_none_is_made() -> None:
    config = parse("--framework=jax", "train.py", "x")
    (spec,) = specs(config, slots(1), {}, 1, 0)
    assert spec.fork_argv == ("script", *spec.argv[2:])
    assert spec.fork_argv[-3:] == ("script", "train.py", "x")
    assert make_fork_server_argv(config.workers, is_jax=True)[3:] == spec.fork_argv
    (spec,) = specs(command.parse(["train.py"], {}), slots(1), {}, 1, 0)
    assert spec.fork_argv == ()
