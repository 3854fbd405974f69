"""From words and variables to one Config, or to one sentence about what is wrong with them."""

from __future__ import annotations

import re

import pytest

from launcher.config import config
from launcher.config.options import command_line, table
from launcher.config.options.readers import DeviceRequest, HangLimits, Streams
from launcher.extensions.kubernetes.options import PROGRESS_VARIABLES
from launcher.model.errors import UsageError
from launcher.model.odd_text import explain_empty
from tests.support.options import list_fields, list_origins, refusal, resolve

NO_WORKERS = "is neither a number nor auto, gpu, cpu or a type of device"


def test_without_options_torchruns_defaults_hold() -> None:
    made = resolve()
    assert list_fields(made) == {
        "script": "train.py", "script_args": (), "launch_mode": "script", "nodes_min": 1, "nodes_max": 1,
        "worker_count": None, "devices_per_worker": None, "mesh": None, "texts": {}, "settings": {},
        "preload": (), "hang_evidence": "auto", "standby": 0, "max_restarts": 0,
        "role": "default", "log_dir": None, "redirects": Streams(), "tee": Streams(), "local_ranks_filter": None,
        "duplicate_stdout_filters": (), "duplicate_stderr_filters": (),
        "log_times": "auto", "events": "", "notify": "",
        "unset": (), "is_alone": True, "shutdown_timeout_s": 30.0,
        "signals_to_handle": ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"), "virtual_local_rank": False,
        "legacy_local_rank": False, "numa_binding": None, "run_id": None,
        "rdzv_backend": "static", "rdzv_endpoint": None, "rdzv_conf": {}, "network": None, "attempt": None,
        "node_name": None, "device_binding": "local-rank", "request": None, "framework": "auto",
        "health_check": None, "health_timeout_s": 60.0, "heartbeat_timeout_s": None,
        "hang_limits": HangLimits(600.0, 3600.0, 3600.0), "on_hang": "report", "locality": (),
        "locality_sources": None, "node_rank": 0,
        "master_addr": None, "master_port": None, "local_addr": None, "interface": None, "port_range": None,
        "worker_port_range": None, "preemption_signal": None, "preemption_file": None,
        "lease_ttl_s": None, "start_timeout_s": 600.0,
        "progress_file": None,
        "python": "/usr/bin/python3",
    }  # fmt: skip
    assert (made.notes, set(list_origins(made).values())) == ((), {"default"})


def test_every_option_has_its_field_and_every_value_remembers_where_it_came_from() -> None:
    made = resolve()
    by_rules = {"nodes_max", "texts", "network", "settings", "start_timeout_s", "is_alone", "unset"}
    without = {"script", "script_args", "python", *by_rules}
    in_mappings = {option.name for option in table.ROWS if "." in option.section}
    assert set(list_origins(made)) == list_fields(made).keys() - without | in_mappings
    made = resolve("-m", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="7")
    assert made.workers.origins["launch_mode"] == "--module"
    assert made.shutdown.origins["shutdown_timeout_s"] == "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


MEETING = ("--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:29400")


@pytest.mark.parametrize(
    ("words", "interface"),
    [(MEETING, "eth9"), ((*MEETING, "--local-addr=h"), None), (("--local-addr=h",), None), ((), None)],
)
def test_an_interface_is_for_nodes_without_an_address_that_meet(words: tuple[str, ...], interface: str | None) -> None:
    made = resolve(*words, LAUNCHER_INTERFACE="eth9")
    assert (made.rendezvous.interface, made.workers.interface) == (interface, interface)
    assert made.workers.is_alone == (MEETING[0] not in words)


def test_options_of_an_extension_are_told_and_no_script_is_an_error() -> None:
    made = resolve("--signals-to-handle=SIGTERM", "--progress=kubeflow")
    assert made.workers.signals_to_handle == made.shutdown.signals_to_handle == ("SIGTERM",)
    assert made.workers.unset == PROGRESS_VARIABLES
    assert resolve("--progress=none").workers.unset == ()
    assert resolve("--request-nodes=true").notes == (
        "--request-nodes true has no effect: no other node can join one machine",
    )
    with pytest.raises(UsageError, match=r"^no script given$") as caught:
        config.resolve(command_line.parse(["--standalone"]), {}, "python")
    assert caught.value.hint == "run meshrun [options] SCRIPT [arguments of the script]; see meshrun -h"


@pytest.mark.parametrize(
    ("words", "may_use"),
    [
        ((), True), (("--nproc-per-node=4",), True), (("--nproc-per-node=cpu",), False), (("--devices=cpu:2",), False),
        (("--devices=nvidia",), True), (("--devices=cpu:2", "--visible-env=CHIPS"), True),
    ],
)  # fmt: skip
def test_who_asks_for_cpus_uses_no_accelerators(words: tuple[str, ...], may_use: bool) -> None:
    assert resolve(*words).devices.may_use_accelerators == may_use


def test_options_and_script_arguments_arrive() -> None:
    made = resolve(
        "--nproc-per-node=4", "--mesh=dp=*,tp=2", "--devices-per-worker=all", "--max-restarts=3", "--role=trainer",
        "--log-dir=/logs", "-r", "1", "-t", "0:2", "--local-ranks-filter=0, 2", "--shutdown-timeout=2.5",
        "--signals-to-handle=SIGUSR1,SIGTERM", "--virtual-local-rank", "--rdzv-id=job7", "--lease-ttl=3",
    )  # fmt: skip
    fields = list_fields(made)
    expected = {
        "worker_count": 4, "devices_per_worker": "all", "max_restarts": 3, "role": "trainer", "log_dir": "/logs",
        "redirects": Streams(all_ranks=1), "tee": Streams(by_rank={0: 2}), "local_ranks_filter": {0, 2},
        "shutdown_timeout_s": 2.5, "signals_to_handle": ("SIGUSR1", "SIGTERM"), "virtual_local_rank": True,
        "run_id": "job7", "lease_ttl_s": 3.0,
    }  # fmt: skip
    assert {name: fields[name] for name in expected} == expected
    assert str(made.placement.mesh) == "dp=*,tp=2"


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
    assert resolve("--redirects", text).output.redirects.select(rank) == streams


@pytest.mark.parametrize(
    "text", ["4", "11", "-1", "x", "0:1,", ",0:1", "0:1,1", "0:4", "0:", ":1", "0:1:1", "0=1", " 1"]
)
def test_streams_that_torchrun_refuses_are_refused(text: str) -> None:
    sentence, hint = refusal("-t", text)
    assert sentence == f"--tee {text} is neither a code nor RANK:CODE,..."
    assert hint is not None
    assert "0 for nothing, 1 for stdout, 2 for stderr, 3 for both" in hint


def test_flags_that_exclude_each_other_and_what_cannot_be_warm_are_refused() -> None:
    hint = "leave out one of them"
    assert refusal("--no-python", "--module") == ("--no-python and --module exclude each other", hint)
    assert refusal("-m", PET_NO_PYTHON="1") == ("PET_NO_PYTHON=1 and --module exclude each other", hint)
    sentence = "{}: --no-python runs a program, but only Python scripts can start with preloaded modules"
    assert refusal("--preload=torch", "--no-python")[0] == sentence.format("--preload torch")
    assert refusal("--no-python", LAUNCHER_STANDBY="1") == (
        sentence.format("LAUNCHER_STANDBY=1"),
        "leave out LAUNCHER_STANDBY, or name the Python script itself",
    )
    assert not resolve("--no-python", "--standby=0").workers.standby


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--nnodes=a"], "--nnodes a is neither a number of nodes nor MIN:MAX"),
        (["--nnodes=4:2"], "--nnodes 4:2: the minimum, 4, is more than the maximum, 2"),
        (["--nnodes=0"], "--nnodes 0: at least 1 node is needed"),
        (["--nnodes=-1:1"], "--nnodes -1:1: at least 1 node is needed"),
        (["--nproc-per-node=0"], "--nproc-per-node 0: at least 1 worker is needed"),
        (["--nproc-per-node=gpus"], f"--nproc-per-node gpus {NO_WORKERS}"),
        (["--nproc-per-node=\u0f20pu"], f"--nproc-per-node \u0f20pu {NO_WORKERS}"),
        (["--devices-per-worker", "0"], "--devices-per-worker 0 is neither a number of at least 1 nor all"),
        (["--devices-per-worker", "some"], "--devices-per-worker some is neither a number of at least 1 nor all"),
        (["--max-restarts", "-1"], "--max-restarts -1 must be an integer >= 0"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout -1 is not a number of seconds"),
        (["--shutdown-timeout", "nan"], "--shutdown-timeout nan is not a number of seconds"),
        (["--lease-ttl", "0"], "--lease-ttl 0: the lease must be longer than 0 s"),
        (["--local-ranks-filter", "0,a"], "--local-ranks-filter 0,a is not a list of local ranks"),
        (["--mesh=dp=3", "--nproc-per-node=4"], "mesh dp=3 needs 3 workers, not 4"),
        (["--devices=4"], "--devices 4 is not a kind of device"),
        (["--devices=nvidia:"], "--devices nvidia: has no number of devices after its colon"),
        (["--devices=nvidia:0"], "--devices nvidia:0 has no number of devices after its colon"),
        (["--devices=nvidia:123456"], "--devices nvidia:123456: more than 10000 devices of one machine"),
        (["--visible-env=FOO"], "--visible-env FOO: --devices is missing"),
        (["--devices=foo", "--visible-env=FOO"],
         "--devices foo and --visible-env FOO: the number of devices is missing"),
        (["--devices=foo:1", "--visible-env=F-O"], "--visible-env F-O is not the name of a variable"),
        (["--devices=foo", "--nproc-per-node=npu"],
         "--devices foo and --nproc-per-node npu both set the devices to count"),
        (["--devices=amd", "--nproc-per-node=cpu"], "--devices amd and --nproc-per-node cpu exclude each other"),
        (["--devices=cpu", "--nproc-per-node=gpu"], "--devices cpu and --nproc-per-node gpu exclude each other"),
        (["--legacy-local-rank", "--use-env"], "--use-env and --legacy-local-rank exclude each other"),
        (["--legacy-local-rank", "--no-python"], "--no-python and --legacy-local-rank exclude each other"),
        (["--start-method=thread"], "--start-method thread is neither spawn nor fork nor forkserver"),
        (["--numa-binding=numa"], "--numa-binding numa is neither node, socket, exclusive nor core-complex"),
        (["--preload=torch,,jax"], "--preload torch,,jax contains an empty name"),
        (["--preload=my-models"], "--preload my-models: my-models is not the name of a module"),
        (["--preload=.torch"], "--preload .torch: .torch is not the name of a module"),
        (["--preload=a.import"], "--preload a.import: a.import is not the name of a module"),
        (["--preload=torch,jax,torch"], "--preload torch,jax,torch names torch twice"),
        (["--standby=-1"], "--standby -1 must be an integer >= 0"),
        (["--standby=17"], "--standby 17: more than 16 standby sets of workers"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_with_its_flag(words: list[str], sentence: str) -> None:
    found, hint = refusal(*words)
    assert found == sentence
    if words[0].startswith(("--devices=", "--visible-env")) and "more than" not in sentence:
        assert hint


POLLS = "has no effect: meshrun does not poll"
ALONE = "has no effect: each worker is started as a program"
METHODS = ("spawn", "fork", "forkserver")
SIGNALS = "SIGTERM,SIGFOO,SIGTREM, SIGUSR1,SIGKILL,SIGCHLD,SIGCLD,SIGTERM"
LEFT_OUT = "--signals-to-handle: {} is ignored: {}"


@pytest.mark.parametrize(
    ("words", "environ", "notes"),
    [
        (["--run-path", "--no-python"], {"PET_MODULE": "1"},
         ["PET_MODULE=1 has no effect with --run-path", "--no-python has no effect with --run-path"]),
        (["--monitor-interval", "5"], {}, [f"--monitor-interval 5 {POLLS}"]),
        *((["--start-method", way], {}, [f"--start-method {way} {ALONE}"]) for way in METHODS),
        *(([], {"PET_START_METHOD": way}, [f"PET_START_METHOD={way} {ALONE}"]) for way in METHODS),
        (["--use-env"], {}, ["--use-env has no effect: LOCAL_RANK is always in the environment"]),
        ([], {"LAUNCHER_USE_ENV": "0"}, []),
        ([], {"PET_EVENT_LOG_HANDLER": "console"},
         ["PET_EVENT_LOG_HANDLER=console has no effect: use --events to write events"]),
        (["--logs-specs=mine"], {},
         ["--logs-specs mine has no effect: use --log-dir, --redirects and --tee to choose log files"]),
        ([], {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
         ["TORCHELASTIC_ENABLE_FILE_TIMER=1 has no effect: meshrun does not serve torch's timers; use "
          "--heartbeat-timeout instead"]),
        ([], {"TORCHELASTIC_ENABLE_FILE_TIMER": "0"}, []),
        (["--legacy-local-rank"], {}, []),
        (["--nnodes", "1:1"], {}, []),
        (["--nnodes", "1:4"], {}, ["--nnodes 1:4: other machines cannot join, so the job starts on 1 node"]),
        (["--standby=1", "--max-restarts=3"], {}, []),
        (["--standby=1"], {}, ["--standby 1 has no effect without --max-restarts: nothing is restarted here"]),
        (["--signals-to-handle", SIGNALS], {}, [
            LEFT_OUT.format("SIGFOO", "no such signal"),
            LEFT_OUT.format("SIGTREM", "no such signal, did you mean SIGTERM?"),
            LEFT_OUT.format("SIGKILL", "no process can handle it"),
            LEFT_OUT.format("SIGCHLD", "it tells the agent that a worker has ended"),
            LEFT_OUT.format("SIGCLD", "it tells the agent that a worker has ended"),
        ]),
        (["--hang-timeout=0"], {"LAUNCHER_ON_HANG": "restart"},
         ["LAUNCHER_ON_HANG=restart has no effect: --hang-timeout 0 disables hang detection"]),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_accepted_and_said(words: list[str], environ: dict[str, str], notes: list[str]) -> None:
    assert list(resolve(*words, **environ).notes) == notes


NETWORK = ("--nnodes=1:2", "--rdzv-backend=etcd", "--rdzv-endpoint=k:2379", "--rdzv-id=x")


HOUR_S, ENDLESS = 3600.0, float("inf")
COUNTS = {"1": 1, "64": 64, "auto": "auto", "gpu": "gpu", "cpu": "cpu", "xpu": "xpu", "npu": "npu"}


@pytest.mark.parametrize(
    ("words", "environ", "field", "value"),
    [
        ([], {}, "launch_mode", "script"),
        (["-m"], {}, "launch_mode", "module"),
        (["--no-python"], {}, "launch_mode", "program"),
        (["--run-path"], {}, "launch_mode", "path"),
        ([], {"PET_MODULE": "1"}, "launch_mode", "module"),
        ([], {"PET_MODULE": "0"}, "launch_mode", "script"),
        (["-m"], {"PET_MODULE": "0"}, "launch_mode", "module"),
        (["--no-python"], {"PET_RUN_PATH": "1"}, "launch_mode", "path"),
        *((["--nproc-per-node", text], {}, "worker_count", count) for text, count in COUNTS.items()),
        (["--max-restarts=1"], {"PET_MAX_RESTARTS": "x"}, "max_restarts", 1),
        (["--numa-binding", "core-complex"], {}, "numa_binding", "core-complex"),
        ([], {"LAUNCHER_NUMA_BINDING": "node"}, "numa_binding", "node"),
        (["--signals-to-handle", SIGNALS], {}, "signals_to_handle", ("SIGTERM", "SIGUSR1")),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, "shutdown_timeout_s", 7),
        ([], {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7", "PET_SHUTDOWN_TIMEOUT": "8"}, "shutdown_timeout_s", 8),
        (["--preload", "torch, a.b,my_models"], {}, "preload", ("torch", "a.b", "my_models")),
        ([], {"LAUNCHER_PRELOAD": ""}, "preload", ()),
        (["--preload=torch", "--no-python"], {"LAUNCHER_CALL": "/tmp/call"}, "preload", ("torch",)),
        (["--use_env"], {}, "legacy_local_rank", False),
        (["--legacy-local-rank"], {}, "legacy_local_rank", True),
        # Where nothing is restarted, no worker waits for a restart; one needs no module to wait.
        (["--standby=1"], {}, "standby", 0),
        (["--standby=1", "--max-restarts=3"], {}, "standby", 1),
        (["--standby=1", *NETWORK], {}, "standby", 1),
        (["--hang-timeout=0"], {}, "hang_limits", None),
        (["--hang-timeout=30"], {}, "hang_limits", HangLimits(30.0, HOUR_S, HOUR_S)),
        # No phase has less than a step, unless it is said.
        (["--hang-timeout=7200"], {}, "hang_limits", HangLimits(7200.0, 7200.0, 7200.0)),
        (["--hang-timeout=7200,start=60"], {}, "hang_limits", HangLimits(7200.0, 60.0, 7200.0)),
        (["--hang-timeout=first-step=0, 30 ,start=90"], {}, "hang_limits", HangLimits(30.0, 90.0, ENDLESS)),
    ],
)
def test_a_value_arrives_as_its_field(words: list[str], environ: dict[str, str], field: str, value: object) -> None:
    assert list_fields(resolve(*words, **environ))[field] == value


@pytest.mark.parametrize(
    ("name", "value", "is_said"),
    [
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "8080", True),
        ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "30", True),
        ("TORCH_ELASTIC_WORKER_IDENTICAL", "1", True),
        ("TORCH_ELASTIC_WORKER_IDENTICAL", "0", False),
        ("TORCHELASTIC_HEALTH_CHECK_PORT", "", False),
    ],
)
def test_a_variable_that_torchruns_agent_reads_and_ours_does_not_is_named(name: str, value: str, is_said: bool) -> None:
    notes = resolve(**{name: value}).notes
    assert [note.startswith(f"{name}={value} has no effect: ") for note in notes] == [True] * is_said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apple", ("apple",)),
        ("apple,orange", ("apple", "orange")),
        ("a,,b,c", ("a,b", "c")),
        ("a,,,b", ("a,", "b")),
        ("apple,", ("apple",)),
        ("", ()),
        (" a ,b", (" a ", "b")),
        ("a,a", ("a",)),
    ],
)
def test_texts_are_parted_by_commas_and_two_commas_are_one(text: str, expected: tuple[str, ...]) -> None:
    assert resolve("--duplicate-stdout-filters", text).output.duplicate_stdout_filters == expected
    assert resolve(PET_DUPLICATE_STDERR_FILTERS=text).output.duplicate_stderr_filters == expected


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ([], None),
        (["--devices=nvidia"], DeviceRequest("nvidia")),
        (["--devices", "amd:4"], DeviceRequest("amd", 4)),
        (["--devices=tpu:v5e-16"], DeviceRequest("tpu", shape="v5e-16")),
        (["--devices=my-chip:2", "--visible-env=CHIPS"], DeviceRequest("my-chip", 2, variable="CHIPS")),
        (["--devices=cpu:2", "--nproc-per-node=cpu"], DeviceRequest("cpu", 2)),
        (["--devices=amd", "--nproc-per-node=gpu"], DeviceRequest("amd")),
        (["--devices=amd", "--nproc-per-node=9"], DeviceRequest("amd")),
    ],
)
def test_a_kind_may_have_a_number_or_a_type_and_a_variable(words: list[str], meaning: DeviceRequest | None) -> None:
    assert resolve(*words).devices.request == meaning
    assert meaning is None or str(meaning) in " ".join(words).replace("=", " ")


@pytest.mark.parametrize(
    ("words", "environ", "sentence", "hint"),
    [
        ([], {"PET_NPROC_PER_NODE": "lots!"}, f"PET_NPROC_PER_NODE=lots! {NO_WORKERS}", None),
        ([], {"PET_STANDALONE": "true"}, "PET_STANDALONE=true is neither 0 nor 1", None),
        ([], {"LAUNCHER_MESH": "tp"}, "LAUNCHER_MESH: mesh 'tp': 'tp' is not NAME=SIZE", None),
        (["--hang-timeout=x"], {}, "--hang-timeout: 'x' is not a number of seconds", None),
        (["--hang-timeout=5,start="], {}, "--hang-timeout: 'start=' is not a number of seconds",
         explain_empty("start=")),
        (["--hang-timeout=5,6"], {}, "--hang-timeout 5,6 sets the limit of a step twice", None),
        (["--hang-timeout=5,start=6,start=7"], {}, "--hang-timeout 5,start=6,start=7 sets start twice", None),
        (["--hang-timeout=5,frist-step=7"], {},
         "--hang-timeout 5,frist-step=7: 'frist-step' is an unknown phase: use start or first-step",
         "did you mean first-step?"),
        (["--hang-timeout=start=5"], {}, "--hang-timeout start=5 needs a limit for a step",
         "write for example 600,start=5"),
        (["--hang-timeout=0,start=5"], {}, "--hang-timeout 0,start=5: 0 disables detection in every phase",
         "leave out start= and first-step="),
        (["--on-hang=kill"], {}, "--on-hang kill is neither report nor restart", None),
    ],
)  # fmt: skip
def test_rubbish_is_refused_there(words: list[str], environ: dict[str, str], sentence: str, hint: str | None) -> None:
    found = refusal(*words, **environ)
    assert found == (sentence, hint) if words else found[0] == sentence


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("9400", ("127.0.0.1", 9400)),
        (" 0 ", ("127.0.0.1", 0)),
        ("0.0.0.0:9400", ("0.0.0.0", 9400)),
        ("[::]:9400", ("::", 9400)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
        ("node0:65535", ("node0", 65535)),
        ("x", "a port is a number from 0"),
        ("node0", "a port is a number from 0"),
        ("node0:", "a port is a number from 0"),
        (":9400", "is neither PORT nor HOST:PORT"),
        ("::1:9400", "is neither PORT nor HOST:PORT"),
        ("a b:9400", "is neither an address nor the name of a host"),
        ("[]:9400", "is neither an address nor the name of a host"),
    ],
)
def test_metrics_are_served_on_loopback_unless_a_host_is_named(text: str, meaning: tuple[str, int] | str) -> None:
    if isinstance(meaning, tuple):
        assert resolve("--metrics-port", text).extensions["metrics-port"].read() == meaning
    else:
        with pytest.raises(UsageError, match=re.escape(meaning)):
            resolve("--metrics-port", text)
