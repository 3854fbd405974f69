"""Every option in every way to write it, seen by what it does; and what is refused."""

from __future__ import annotations

from tests.compat.looks import console, exit_code, is_refused, log, log_files, port, succeeds, variable, yes
from tests.compat.runs import DUMP, Case, case

# The effect of every option that has one on two workers of one machine, under whatever spelling.
_ALL = {
    "nnodes": "1:1",
    "nproc-per-node": "2",
    "rdzv-backend": "c10d",
    "rdzv-endpoint": "127.0.0.1:0",
    "rdzv-id": "night",
    "rdzv-conf": "join_timeout=60,last_call_timeout=1",
    "max-restarts": "3",
    "monitor-interval": "0.05",
    "start-method": "spawn",
    "event-log-handler": "null",
    "role": "trainer",
    "log-dir": "logs",
    "redirects": "0:1,1:2",
    "tee": "1:1",
    "local-ranks-filter": "1",
    "duplicate-stdout-filters": "apple,pear",
    "duplicate-stderr-filters": "plum",
    "node-rank": "0",
    "master-addr": "127.0.0.1",
    "master-port": "29511",
    "local-addr": "127.0.0.1",
    "signals-to-handle": "SIGTERM,SIGUSR2",
    "shutdown-timeout": "7",
}
_SAYS = DUMP + "\nprint('apple', os.environ['RANK']); print('fig'); print('plum', file=sys.stderr)\n"
_EFFECTS = (
    ("options in any spelling: the command line is accepted", succeeds, "runs"),
    ("--nproc-per-node 2: LOCAL_WORLD_SIZE", variable("LOCAL_WORLD_SIZE"), "2"),
    ("--max-restarts 3: TORCHELASTIC_MAX_RESTARTS", variable("TORCHELASTIC_MAX_RESTARTS"), "3"),
    ("--role trainer: ROLE_NAME", variable("ROLE_NAME"), "trainer"),
    ("--rdzv-id night: TORCHELASTIC_RUN_ID", variable("TORCHELASTIC_RUN_ID"), "night"),
    (
        "--signals-to-handle: TORCHELASTIC_SIGNALS_TO_HANDLE",
        variable("TORCHELASTIC_SIGNALS_TO_HANDLE"),
        "SIGTERM,SIGUSR2",
    ),
    (
        "--redirects 0:1,1:2 and --tee 1:1: files that are written",
        log_files,
        "attempt_0/0/stdout.log attempt_0/1/stderr.log attempt_0/1/stdout.log attempt_0/filtered_stdout.log",
    ),
    ("--redirects 0:1: the file of local rank 0", log("attempt_0/0/stdout.log"), "apple 0; fig"),
    ("--tee 1:1 with --role trainer: the console", console(), "[trainer1]:apple 1; [trainer1]:fig"),
    (
        "--duplicate-stdout-filters apple,pear: filtered_stdout.log",
        log("attempt_0/filtered_stdout.log"),
        "[trainer1]:apple 1",
    ),
)


def _written(prefix: str, separator: str, *, dashes: bool) -> tuple[str, ...]:
    words: list[str] = []
    for name, value in _ALL.items():
        flag = prefix + (name if dashes else name.replace("-", "_"))
        words += [flag + separator + value] if separator else [flag, value]
    return tuple(words)


_FLAGS = (
    ("--virtual-local-rank: LOCAL_RANK of local rank 1", variable("LOCAL_RANK", 1), "0"),
    ("--virtual-local-rank: CUDA_VISIBLE_DEVICES of local rank 1", variable("CUDA_VISIBLE_DEVICES", 1), "6"),
    ("--standalone: the job runs", succeeds, "runs"),
    (
        "--standalone: an --rdzv-id beside it names the run",
        yes(lambda seen: seen.environ("TORCHELASTIC_RUN_ID") == "night"),
        "no",
    ),
    ("--standalone: MASTER_PORT beside --master-port", port(), "a free port"),
)
_MODULE = {"package/__init__.py": "", "package/work.py": DUMP}
_BESIDE_STANDALONE = "--rdzv-backend static --rdzv-endpoint 192.0.2.1:1 --rdzv-id night --master-port {port}"
_CUDA = {"CUDA_VISIBLE_DEVICES": "4,6"}


def _refused(name: str, options: str, sentence: str, torchrun: str, **more: str) -> Case:
    return case(name, options, (sentence, is_refused, torchrun), environ=more)


CASES: tuple[Case, ...] = (
    case("dashes and a blank", _written("--", "", dashes=True), *_EFFECTS, script=_SAYS),
    case("dashes and =", _written("--", "=", dashes=True), *_EFFECTS, script=_SAYS),
    case("underscores and a blank", _written("--", "", dashes=False), *_EFFECTS, script=_SAYS),
    case("underscores and =", _written("--", "=", dashes=False), *_EFFECTS, script=_SAYS),
    case(
        "PET_ variables",
        "",
        *_EFFECTS,
        environ={f"PET_{name.replace('-', '_').upper()}": value for name, value in _ALL.items()},
        script=_SAYS,
    ),
    # Long enough to have a dash: argparse counts --nproc-per-node and --nproc_per_node as two before Python 3.12.
    case(
        "beginnings of names",
        "--nproc-p 2 --max-re 3 --rol trainer --rdzv-i=night --signals-t SIGUSR2 --redirect=3 --log-d logs",
        *_EFFECTS[:3],
        (
            "--redirect=3: files that are written",
            log_files,
            "attempt_0/0/stderr.log attempt_0/0/stdout.log attempt_0/1/stderr.log attempt_0/1/stdout.log",
        ),
        script=_SAYS,
    ),
    case(
        "short names",
        "--log-dir=logs -m -r3 -t 1",
        ("-m: a module runs", lambda seen: seen.worker()["name"], "__main__"),
        ("-m: its arguments", lambda seen: " ".join(seen.worker()["argv"][1:]), "-m -r"),
        target="package.work -m -r",
        files=_MODULE,
    ),
    case(
        "a flag beside its variable",
        "--nproc-per-node 1 --role flag",
        ("a flag and its PET_ variable: the flag", variable("ROLE_NAME"), "flag"),
        ("a flag and its PET_ variable: number of workers", variable("WORLD_SIZE"), "1"),
        ("a PET_ variable beside other flags", variable("TORCHELASTIC_MAX_RESTARTS"), "4"),
        environ={"PET_NPROC_PER_NODE": "2", "PET_ROLE": "variable", "PET_MAX_RESTARTS": "4", "PET_STANDALONE": "0"},
    ),
    case(
        "flags without a value",
        f"--standalone --virtual-local-rank --nproc-per-node 2 {_BESIDE_STANDALONE}",
        *_FLAGS,
        environ=_CUDA,
    ),
    case(
        "flags without a value, from variables",
        "--nproc_per_node=2 " + _BESIDE_STANDALONE.replace("-id", "_id"),
        *_FLAGS,
        environ={**_CUDA, "PET_STANDALONE": "1", "PET_VIRTUAL_LOCAL_RANK": "1", "PET_MODULE": "0", "PET_RUN_PATH": "0"},
    ),
    case(
        "a signal that does not exist",
        "--signals-to-handle SIGTERM,SIGNOPE",
        ("an unknown name in --signals-to-handle", succeeds, "runs"),
    ),
    case("help", "--help", ("--help: exit code", exit_code(), "0"), target=""),
    _refused("an unknown option", "--no-such 1", "an option that is unknown", "refused, exit code 2"),
    _refused("an unknown start method", "--start-method x", "a choice that does not exist", "refused, exit code 2"),
    _refused("not a number", "--max-restarts=x", "text where a number belongs", "refused, exit code 2"),
    _refused("no-python and module", "--no-python --module", "--no-python with --module", "refused, exit code 1"),
    _refused(
        "no-python and module from variables",
        "",
        "--no-python with --module",
        "refused, exit code 1",
        PET_NO_PYTHON="1",
        PET_MODULE="1",
    ),
    *(
        _refused(f"a bad value: {options}", options, "an invalid option value", "refused, exit code 1")
        for options in (
            "--redirects 0:1,",
            "--nnodes 2:1",
            "--nproc-per-node many",
            "--rdzv-backend nowhere",
        )
    ),
    _refused("an unknown log plug-in", "--logs-specs nothing", "--logs-specs NAME", "refused, exit code 1"),
    _refused(
        "a static rendezvous without a port",
        "--rdzv-backend static --rdzv-endpoint 127.0.0.1",
        "a static endpoint without a port",
        "refused, exit code 1",
    ),
)
