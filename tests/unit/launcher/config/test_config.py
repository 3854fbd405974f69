"""From words and variables to one Config, or to one sentence about what is wrong with them."""

from __future__ import annotations

import dataclasses

import pytest

from launcher.config import config
from launcher.config.config import Config
from launcher.config.options import command_line, table
from launcher.config.options.rendezvous import SETTINGS_OPTIONS
from launcher.config.options.worker_options import Streams
from launcher.model.errors import UsageError


def resolve(*words: str, script: str = "train.py", **environ: str) -> Config:
    return config.resolve(command_line.parse([*words, script]), environ, "/usr/bin/python3")


def refusal(*words: str, script: str = "train.py", **environ: str) -> tuple[str, str | None]:
    with pytest.raises(UsageError) as caught:
        resolve(*words, script=script, **environ)
    assert caught.value.exit_code == 2
    return str(caught.value), caught.value.hint


def test_without_options_torchruns_defaults_hold() -> None:
    made = resolve()
    assert dataclasses.asdict(made) == {
        "script": "train.py",
        "script_args": (),
        "launch_mode": "script",
        "nodes_min": 1,
        "nodes_max": 1,
        "worker_count": None,
        "devices_per_worker": None,
        "mesh": None,
        "placement_options": {},
        "settings": {},
        "preload": (),
        "standby": 0,
        "max_restarts": 0,
        "monitor_interval_s": 0.1,
        "role": "default",
        "log_dir": None,
        "redirects": Streams(),
        "tee": Streams(),
        "local_ranks_filter": None,
        "duplicate_stdout_filters": (),
        "duplicate_stderr_filters": (),
        "logs_specs": None,
        "event_log_handler": "null",
        "shutdown_timeout_s": 30.0,
        "signals_to_handle": ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"),
        "virtual_local_rank": False,
        "legacy_local_rank": False,
        "numa_binding": None,
        "run_id": None,
        "standalone": False,
        "rdzv_backend": "static",
        "rdzv_endpoint": None,
        "rdzv_conf": {},
        "network": None,
        "attempt": None,
        "node_name": None,
        "device_binding": "local-rank",
        "devices": None,
        "framework": "auto",
        "health_check": None,
        "health_timeout_s": 60.0,
        "heartbeat_timeout_s": None,
        "locality": (),
        "locality_file": None,
        "locality_command": None,
        "locality_sources": None,
        "node_rank": 0,
        "master_addr": None,
        "master_port": None,
        "local_addr": None,
        "interface": None,
        "port_range": None,
        "worker_port_range": None,
        "preemption_signal": None,
        "preemption_file": None,
        "lease_ttl_s": None,
        "python": "/usr/bin/python3",
        "notes": (),
        "origins": made.origins,
    }
    assert set(made.origins.values()) == {"default"}


def test_every_option_has_its_field_and_every_field_its_origin() -> None:
    fields = {field.name for field in dataclasses.fields(Config)}
    without = {"script", "script_args", "placement_options", "settings", "python", "notes", "origins"}
    assert set(resolve().origins) == fields - without | set(table.PLACEMENT_OPTIONS) | set(SETTINGS_OPTIONS)


def test_options_and_script_arguments_arrive() -> None:
    made = resolve(
        "--nproc-per-node=4", "--mesh=dp=*,tp=2", "--devices-per-worker=all", "--max-restarts=3", "--role=trainer",
        "--log-dir=/logs", "-r", "1", "-t", "0:2", "--local-ranks-filter=0, 2", "--shutdown-timeout=2.5",
        "--signals-to-handle=SIGUSR1,SIGTERM", "--virtual-local-rank", "--rdzv-id=job7", "--lease-ttl=3",
    )  # fmt: skip
    assert made.worker_count == 4
    assert str(made.mesh) == "dp=*,tp=2"
    assert made.devices_per_worker == "all"
    assert (made.max_restarts, made.role, made.log_dir, made.run_id) == (3, "trainer", "/logs", "job7")
    assert made.redirects == Streams(all_ranks=1)
    assert made.tee == Streams(by_rank={0: 2})
    assert made.local_ranks_filter == {0, 2}
    assert (made.shutdown_timeout_s, made.lease_ttl_s) == (2.5, 3.0)
    assert made.signals_to_handle == ("SIGUSR1", "SIGTERM")
    assert made.virtual_local_rank


def test_each_value_remembers_where_it_came_from() -> None:
    made = resolve(
        "--nnodes=1", "-m", LAUNCHER_ROLE="a", PET_ROLE="b", PET_MAX_RESTARTS="2", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7"
    )
    assert (made.role, made.max_restarts, made.shutdown_timeout_s) == ("a", 2, 7.0)
    assert made.origins["nodes_min"] == made.origins["nodes_max"] == "--nnodes"
    assert made.origins["role"] == "LAUNCHER_ROLE"
    assert made.origins["max_restarts"] == "PET_MAX_RESTARTS"
    assert made.origins["shutdown_timeout_s"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
    assert made.origins["launch_mode"] == "--module"
    assert made.origins["worker_count"] == "default"


@pytest.mark.parametrize("name", table.PLACEMENT_OPTIONS)
def test_placement_options_come_from_flags_from_variables_or_not_at_all(name: str) -> None:
    variable = "LAUNCHER_" + name.replace("-", "_").upper()
    by_flag, by_variable, by_neither = (
        resolve(f"--{name}", "7", **{variable: "8"}),
        resolve(**{variable: "8"}),
        resolve(),
    )
    assert (by_flag.placement_options, by_flag.origins[name]) == ({name: "7"}, f"--{name}")
    assert (by_variable.placement_options, by_variable.origins[name]) == ({name: "8"}, variable)
    assert (by_neither.placement_options, by_neither.origins[name]) == ({}, "default")


def test_torchruns_shutdown_variable_is_read_last() -> None:
    last = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}
    assert resolve(**last).shutdown_timeout_s == 7
    assert resolve(**last, PET_SHUTDOWN_TIMEOUT="8").shutdown_timeout_s == 8


@pytest.mark.parametrize(
    ("text", "rank", "streams"),
    [
        ("0", 0, (False, False)),
        ("1", 5, (True, False)),
        ("2", 5, (False, True)),
        ("3", 5, (True, True)),
        ("0:3,1:0,2:1,3:2", 0, (True, True)),
        ("0:3,1:0,2:1,3:2", 1, (False, False)),
        ("0:3,1:0,2:1,3:2", 2, (True, False)),
        ("0:3,1:0,2:1,3:2", 3, (False, True)),
        ("0:3,1:0,2:1,3:2", 4, (False, False)),
        ("12:1", 12, (True, False)),
    ],
)
def test_streams_answer_for_each_local_rank(text: str, rank: int, streams: tuple[bool, bool]) -> None:
    assert resolve("--redirects", text).redirects.select(rank) == streams


@pytest.mark.parametrize(
    "text", ["4", "11", "-1", "x", "0:1,", ",0:1", "0:1,1", "0:4", "0:", ":1", "0:1:1", "0=1", " 1"]
)
def test_streams_that_torchrun_refuses_are_refused(text: str) -> None:
    sentence, hint = refusal("-t", text)
    assert sentence == f"--tee {text} is neither a code nor RANK:CODE,..."
    assert hint is not None
    assert "0 nothing, 1 stdout, 2 stderr, 3 both" in hint


@pytest.mark.parametrize(
    ("words", "environ", "mode", "origin"),
    [
        ([], {}, "script", "default"),
        (["-m"], {}, "module", "--module"),
        (["--no-python"], {}, "program", "--no-python"),
        (["--run-path"], {}, "path", "--run-path"),
        ([], {"PET_MODULE": "1"}, "module", "PET_MODULE"),
        ([], {"PET_MODULE": "0"}, "script", "default"),
        (["-m"], {"PET_MODULE": "0"}, "module", "--module"),
        (["--no-python"], {"PET_RUN_PATH": "1"}, "path", "PET_RUN_PATH"),
    ],
)
def test_flags_and_their_variables_choose_what_the_script_is(
    words: list[str], environ: dict[str, str], mode: str, origin: str
) -> None:
    made = resolve(*words, **environ)
    assert (made.launch_mode, made.origins["launch_mode"]) == (mode, origin)


def test_run_path_wins_and_says_what_it_overrides() -> None:
    assert resolve("--run-path", "--no-python", PET_MODULE="1").notes == (
        "PET_MODULE=1 has no effect beside --run-path",
        "--no-python has no effect beside --run-path",
    )


def test_a_program_cannot_be_a_module() -> None:
    hint = "a module is run by Python"
    assert refusal("--no-python", "--module") == ("--no-python and --module exclude each other", hint)
    assert refusal("-m", PET_NO_PYTHON="1") == ("PET_NO_PYTHON=1 and --module exclude each other", hint)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a", "--nnodes a is neither a number of nodes nor MIN:MAX"),
        ("1:2:3", "--nnodes 1:2:3 is neither a number of nodes nor MIN:MAX"),
        (":4", "--nnodes :4 is neither a number of nodes nor MIN:MAX"),
        ("4:2", "--nnodes 4:2: the least, 4, is more than the most, 2"),
        ("0", "--nnodes 0: at least 1 node is needed"),
        ("-1:1", "--nnodes -1:1: at least 1 node is needed"),
        ("2", "--nnodes 2: the nodes need a place to meet"),
        ("2:4", "--nnodes 2:4: the nodes need a place to meet"),
    ],
)
def test_a_number_of_nodes_that_cannot_be_is_refused(text: str, sentence: str) -> None:
    assert refusal(f"--nnodes={text}")[0] == sentence


def test_more_nodes_than_this_one_may_be_allowed_but_none_can_join() -> None:
    assert resolve("--nnodes", "1:1").notes == ()
    made = resolve("--nnodes", "1:4")
    assert (made.nodes_min, made.nodes_max) == (1, 1)
    assert made.notes == ("--nnodes 1:4: only this machine can join, the job starts at once on 1 node",)


@pytest.mark.parametrize(
    ("text", "count"),
    [("1", 1), ("64", 64), ("auto", "auto"), ("gpu", "gpu"), ("cpu", "cpu"), ("xpu", "xpu"), ("npu", "npu")],
)
def test_workers_are_counted_or_found(text: str, count: int | str) -> None:
    assert resolve("--nproc-per-node", text).worker_count == count


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0", "--nproc-per-node 0: at least 1 worker is needed"),
        ("-1", "--nproc-per-node -1: at least 1 worker is needed"),
        ("2.5", "--nproc-per-node 2.5 is neither a number nor auto, gpu, cpu or a type of device"),
        ("gpus", "--nproc-per-node gpus is neither a number nor auto, gpu, cpu or a type of device"),
        ("cuda", "--nproc-per-node cuda is neither a number nor auto, gpu, cpu or a type of device"),
        ("\u0f20pu", "--nproc-per-node \u0f20pu is neither a number nor auto, gpu, cpu or a type of device"),
    ],
)
def test_a_number_of_workers_that_cannot_be_is_refused(text: str, sentence: str) -> None:
    assert refusal("--nproc-per-node", text)[0] == sentence


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--devices-per-worker", "0"], "--devices-per-worker 0 is neither a number of at least 1 nor all"),
        (["--devices-per-worker", "some"], "--devices-per-worker some is neither a number of at least 1 nor all"),
        (["--max-restarts", "-1"], "--max-restarts -1 is not a whole number of at least 0"),
        (["--max-restarts", "many"], "--max-restarts many is not a whole number of at least 0"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout -1 is not a number of seconds"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout nan is not a number of seconds"),
        (["--monitor-interval", "inf"], "--monitor-interval inf is not a number of seconds"),
        (["--lease-ttl", "soon"], "--lease-ttl soon is not a number of seconds"),
        (["--lease-ttl", "0"], "--lease-ttl 0: a lease of no length cannot be kept"),
        (["--local-ranks-filter", "0,a"], "--local-ranks-filter 0,a is not a list of local ranks"),
        (["--local-ranks-filter", "0,"], "--local-ranks-filter 0, is not a list of local ranks"),
        (["--local-ranks-filter", "0,-1"], "--local-ranks-filter 0,-1 is not a list of local ranks"),
        (["--mesh", "dp=*,tp=*"], "mesh 'dp=*,tp=*' has 2 elastic axes (dp, tp), at most one may be *"),
        (["--mesh=dp=3", "--nproc-per-node=4"], "mesh dp=3 needs 3 workers, not 4"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_its_flag(words: list[str], sentence: str) -> None:
    assert refusal(*words)[0] == sentence


@pytest.mark.parametrize(
    ("variable", "text", "sentence"),
    [
        (
            "PET_NPROC_PER_NODE",
            "lots!",
            "PET_NPROC_PER_NODE=lots! is neither a number nor auto, gpu, cpu or a type of device",
        ),
        ("PET_NNODES", "a", "PET_NNODES=a is neither a number of nodes nor MIN:MAX"),
        ("PET_MAX_RESTARTS", "", "PET_MAX_RESTARTS= is not a whole number of at least 0"),
        ("LAUNCHER_MAX_RESTARTS", "x", "LAUNCHER_MAX_RESTARTS=x is not a whole number of at least 0"),
        ("PET_STANDALONE", "true", "PET_STANDALONE=true is neither 0 nor 1"),
        ("PET_STANDALONE", "", "PET_STANDALONE= is neither 0 nor 1"),
        ("PET_MODULE", "yes", "PET_MODULE=yes is neither 0 nor 1"),
        ("LAUNCHER_VIRTUAL_LOCAL_RANK", "2", "LAUNCHER_VIRTUAL_LOCAL_RANK=2 is neither 0 nor 1"),
        ("PET_SHUTDOWN_TIMEOUT", "a", "PET_SHUTDOWN_TIMEOUT=a is not a number of seconds"),
        ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "a", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=a is not a number of seconds"),
        ("PET_REDIRECTS", "9", "PET_REDIRECTS=9 is neither a code nor RANK:CODE,..."),
        ("PET_MASTER_PORT", "high", "PET_MASTER_PORT=high: a port is a number from 0 (any free one) to 65535"),
        ("PET_NODE_RANK", "x", "PET_NODE_RANK=x is not a whole number of at least 0"),
        ("LAUNCHER_MESH", "tp", "LAUNCHER_MESH: mesh 'tp': 'tp' is not NAME=SIZE"),
    ],
)
def test_rubbish_in_a_variable_names_the_variable(variable: str, text: str, sentence: str) -> None:
    assert refusal(**{variable: text})[0] == sentence


def test_a_flag_hides_rubbish_in_its_variable() -> None:
    assert resolve("--max-restarts=1", PET_MAX_RESTARTS="x").max_restarts == 1


def test_signals_that_cannot_be_handled_are_left_out_with_a_warning() -> None:
    made = resolve("--signals-to-handle", "SIGTERM,SIGFOO,SIGTREM, SIGUSR1,SIGKILL,SIGCHLD,SIGCLD,SIGTERM")
    assert made.signals_to_handle == ("SIGTERM", "SIGUSR1")
    assert made.notes == (
        "--signals-to-handle: SIGFOO is left out: there is no such signal",
        "--signals-to-handle: SIGTREM is left out: there is no such signal, did you mean SIGTERM?",
        "--signals-to-handle: SIGKILL is left out: no process can handle it",
        "--signals-to-handle: SIGCHLD is left out: it tells the agent that a worker has ended",
        "--signals-to-handle: SIGCLD is left out: it tells the agent that a worker has ended",
    )


def test_an_option_without_effect_is_accepted_with_a_remark() -> None:
    remark = "has no effect: nothing polls, a worker's end is seen at once"
    assert resolve("--monitor-interval", "5").notes == (f"--monitor-interval 5 {remark}",)
    assert resolve(PET_MONITOR_INTERVAL="5").notes == (f"PET_MONITOR_INTERVAL=5 {remark}",)


def test_no_script_is_an_error_with_the_usage_as_hint() -> None:
    with pytest.raises(UsageError, match=r"^no script given$") as caught:
        config.resolve(command_line.parse(["--standalone"]), {}, "python")
    assert caught.value.hint == "meshrun [options] SCRIPT [arguments of the script]; meshrun -h explains"
