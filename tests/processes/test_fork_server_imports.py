"""What may be preloaded, and what people are told of a module that may not, or that does what they may not expect."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.supervisor.fork_server import fork_safety
from tests.support.processes.small_supervisor import SmallSupervisor


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[SmallSupervisor]:
    (tmp_path / "main.py").write_text("import sys\nprint('runs')")
    with SmallSupervisor(tmp_path) as supervisor:
        yield supervisor


def write(supervisor: SmallSupervisor, **modules: str) -> None:
    for name, text in modules.items():
        (supervisor.folder / f"{name}.py").write_text(text)


REFUSED = {
    "threads": (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(3600,), name='the poller', daemon=True).start()",
        'started the thread "the poller", which a fork would lose',
    ),
    "nameless": (
        "import _thread, time\nfor _ in range(3): _thread.start_new_thread(time.sleep, (3600,))",
        "and 2 more, which a fork would lose",
    ),
    "leaves": (
        "import subprocess, sys\nprocess = subprocess.Popen(['sleep', '3600'])",
        'started the process "sleep 3600", which workers would share',
    ),
    "fails": ("def inner(): raise ValueError('a reason\\nand more')\ninner()", "raised ValueError: a reason"),
    "silent": ("raise KeyError", "raised KeyError"),
    "ends": ("import sys; sys.exit(4)", "called sys.exit(4)"),
    "lacks": ("import does_not_exist.inner", "raised ModuleNotFoundError: No module named 'does_not_exist'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_fork_would_lose_or_cannot_be_imported_is_refused_by_name(
    supervisor: SmallSupervisor, name: str
) -> None:
    text, expected = REFUSED[name]
    write(supervisor, **{name: text})
    kind, sentence, hint = supervisor.start(["colorsys", name], "script", "main.py")
    assert kind == "refused"
    assert sentence.startswith(f"--preload: importing {name} "), sentence
    assert sentence.endswith(expected), sentence
    assert hint == f"leave {name} out of --preload"
    assert supervisor.ask("wait", supervisor.server_pid) == 0
    if name == "fails":
        trace = supervisor.output("server")[1]
        assert trace.startswith(
            f'Traceback (most recent call last):\n  File "{supervisor.folder}/fails.py", line 2, in'
        ), trace


@pytest.mark.parametrize("name", ["does_not_exist", "json.does_not_exist", "does_not_exist.json"])
def test_a_module_that_is_not_there_is_named_with_the_python_that_looked(
    supervisor: SmallSupervisor, name: str
) -> None:
    missing = name if name.startswith("json") else "does_not_exist"
    kind, sentence, hint = supervisor.start([name], "script", "main.py")
    assert (kind, sentence) == ("refused", f"--preload: module {missing} does not exist")
    assert hint == f"install it for {supervisor.python}, which runs the workers, or leave it out of --preload"
    assert supervisor.output("server") == ("", "")


def test_a_thread_from_before_the_imports_is_not_blamed_on_one_of_them(supervisor: SmallSupervisor) -> None:
    (supervisor.folder / "own").mkdir()
    (supervisor.folder / "own" / "sitecustomize.py").write_text(REFUSED["threads"][0])
    kind, sentence, _ = supervisor.start(["colorsys"], "script", "main.py", PYTHONPATH=str(supervisor.folder / "own"))
    expected = f'{supervisor.python} has started the thread "the poller" before anything was imported'
    assert (kind, sentence) == ("refused", f"--preload: {expected}")


def test_cuda_is_refused_when_it_was_begun_or_as_much_as_asked(supervisor: SmallSupervisor) -> None:
    fake = "import os, sys\npid = os.getpid()\ndef is_initialized(): return {begun}\n"
    fake += "def _is_in_bad_fork(): return {asked} and os.getpid() != pid\n"
    (supervisor.folder / "torch").mkdir()
    (supervisor.folder / "torch" / "__init__.py").write_text("import torch.cuda")
    for begun, asked, expected in (
        (True, False, "importing torch began to use torch.cuda, which forked processes cannot use"),
        (False, True, "importing torch asked torch.cuda for its devices, which forked processes then cannot use"),
    ):
        (supervisor.folder / "torch" / "cuda.py").write_text(fake.format(begun=begun, asked=asked))
        with SmallSupervisor(supervisor.folder) as other:
            answer = other.start(["torch"], "script", "main.py", PYTHONDONTWRITEBYTECODE="1")
            assert answer[:2] == ["refused", f"--preload: {expected}"]


def test_devices_are_known_by_the_names_of_their_files() -> None:
    accelerators = ("nvidia0", "nvidiactl", "nvidia-uvm", "kfd", "dri/renderD128", "accel0", "accel/accel3", "vfio/12")
    for name in (*accelerators, "neuron0", "hl0", "hl_controlD0", "davinci0", "davinci_manager", "apex_0", "dxg"):
        assert fork_safety._ACCELERATOR_PATH.match(f"/dev/{name}"), name
    for name in ("null", "shm/x", "urandom", "hlx", "tty", "pts/0", "hugepages/a"):
        assert not fork_safety._ACCELERATOR_PATH.match(f"/dev/{name}"), name


def test_threads_that_end_soon_and_those_that_a_fork_takes_down_are_fine(supervisor: SmallSupervisor) -> None:
    pytest.importorskip("numpy")
    write(
        supervisor,
        ends="import threading, time\nthreading.Thread(target=time.sleep, args=(0.05,)).start()",
        main="import numpy, os\nassert (numpy.ones((300, 300)) @ numpy.ones((300, 300)))[0, 0] == 300",
    )
    answer = supervisor.start(["ends", "numpy"], "script", "main.py", OPENBLAS_NUM_THREADS="4", PYTHONWARNINGS="error")
    assert (answer[0], answer[2]) == ("ready", []), (answer, supervisor.output("server"))
    assert supervisor.run() == (0, "", "")


def test_a_module_beside_the_script_is_imported_with_its_argv_and_path(supervisor: SmallSupervisor) -> None:
    write(
        supervisor,
        beside="import sys\nwords, path = list(sys.argv), list(sys.path)",
        main="import beside, sys\n"
        "print(beside.words == sys.argv, beside.path == sys.path, sys.path.count(sys.path[0]))",
    )
    assert supervisor.start(["beside"], "script", "main.py", "a", "--b")[0] == "ready"
    assert supervisor.run() == (0, "True True 1\n", "")


def test_what_an_import_does_to_its_process_it_has_done_to_every_worker(supervisor: SmallSupervisor) -> None:
    write(
        supervisor,
        acts="import atexit, ctypes, signal, sys\n"
        "print('imported')\n"
        "atexit.register(print, 'exit handler')\n"
        "signal.signal(signal.SIGUSR1, lambda *_: print('signalled'))\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])\n"
        "libc = ctypes.CDLL(None)\n"
        "buffer = ctypes.create_string_buffer(4096)\n"
        "libc.setvbuf(ctypes.c_void_p.in_dll(libc, 'stdout'), buffer, 0, 4096)\n"
        "libc.printf(b'by C\\n')\n"
        "sys.path.append('added')\n",
        main="import os, signal, sys\nos.kill(os.getpid(), signal.SIGUSR1)\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, []) == {signal.SIGUSR2}, sys.path[-1],\n"
        "      signal.getsignal(signal.SIGINT) is signal.default_int_handler)",
    )
    assert supervisor.start(["acts"], "script", "main.py")[::2] == ["ready", []]
    for _ in range(2):
        assert supervisor.run() == (0, "signalled\nTrue added True\nexit handler\n", "")
    supervisor.ask("close", 0)
    supervisor.ask("wait", supervisor.server_pid)
    assert supervisor.output("server") == ("imported\nby C\n", "")


def test_an_import_that_takes_standard_output_apart_stops_nobody(supervisor: SmallSupervisor) -> None:
    write(supervisor, wraps="import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')")
    assert supervisor.start(["wraps"], "script", "main.py")[0] == "ready"
    assert supervisor.run() == (0, "runs\n", "")


def test_remarks_name_what_workers_will_see_otherwise_than_expected(supervisor: SmallSupervisor) -> None:
    write(
        supervisor,
        moves="import os\nos.chdir('/')",
        opens="import socket\nfile = open('log', 'w')\nfile.write('once\\n')\none, two = socket.socketpair()",
        main="import opens, os\nprint(os.getcwd())\nopens.file.close()",
    )
    kind, _, remarks = supervisor.start(["moves", "opens"], "script", "main.py")
    place = str(supervisor.folder)
    assert kind == "ready"
    assert remarks == [
        f"importing moves changed the directory to /: workers still start in {place}",
        f"importing opens left {place}/log and a socket open; all workers share it",
    ]
    for _ in range(2):
        assert supervisor.run() == (0, f"{place}\n", "")
    assert (supervisor.folder / "log").read_text() == "once\n"


def test_what_an_import_runs_is_not_taken_for_a_fork_server(supervisor: SmallSupervisor) -> None:
    write(
        supervisor,
        asks="import os, stat\nprint([os.environ.get(name) for name in ('LAUNCHER_FORK_SERVER', 'PYTHONPATH')])\n"
        "for number in range(3, 20):\n"
        "    try: assert not stat.S_ISSOCK(os.fstat(number).st_mode), number\n"
        "    except OSError: pass",
        runs="import subprocess, sys\n"
        "ended = subprocess.run([sys.executable, 'asks.py'], capture_output=True, text=True, close_fds=False)",
        main="import runs\nprint(runs.ended.returncode, runs.ended.stdout, runs.ended.stderr)",
    )
    assert supervisor.start(["runs"], "script", "main.py", PYTHONPATH=None)[0] == "ready"
    assert supervisor.run() == (0, "0 [None, None]\n \n", "")


def test_the_garbage_collector_is_off_only_during_the_imports(supervisor: SmallSupervisor) -> None:
    write(
        supervisor,
        during="import gc\nseen = gc.isenabled(), gc.get_threshold()",
        main="import during, gc\n"
        "print(during.seen[1][0], gc.isenabled(), gc.get_threshold()[0] > 0, gc.get_freeze_count() > 0)",
    )
    supervisor.start(["during"], "script", "main.py")
    assert supervisor.run() == (0, "0 True True True\n", "")


def test_nothing_is_left_open_that_was_not_there() -> None:
    before = fork_safety.list_open_files()
    with open(os.devnull), open(__file__) as file:
        assert fork_safety.list_opened_files(before) == [__file__]
        assert file.fileno() not in before
    assert fork_safety.list_opened_files(before) == []
