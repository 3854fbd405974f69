"""What a Python worker begins with: a script sees what it sees under Python, and fails as it does there.

Most tests run one program twice, by Python and by `as_main`, and compare all that can be seen from outside. A worker of
JAX gets the word `jax` first: a failure ends it at once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.extensions.hints import last_words
from launcher.hardware.linux import shared_page
from launcher.hardware.linux.shared_page import SharedPage
from launcher.logs.error_file import read_error
from launcher.ranks import as_main
from tests.support.processes.terminal import Terminal
from tests.support.waiting import wait_until

LIMIT_S = 60.0
LOOK = """
'''A script that shows all that it can see of itself.'''
import inspect, multiprocessing, os, pickle, sys

class Own: pass
def double(number): return 2 * number

if __name__ == "__main__":
    seen = {name: value for name, value in globals().items() if name.startswith("__")}
    print(sorted(seen.items(), key=lambda item: item[0]))
    print(sys.argv, sys.orig_argv[1:], sys.path)
    print(pickle.dumps(Own()), inspect.getsource(double), sys.modules["__main__"].__dict__ is globals())
    if "pool" in sys.argv:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(double, [1, 2]))
"""
FAIL = """
import atexit, sys
atexit.register(print, "handler")
def boom(): raise ValueError("the reason")
how = sys.argv[1]
if how == "raise": boom()
elif how == "interrupt": raise KeyboardInterrupt
elif how == "text": sys.exit("a text")
elif how == "hook":
    sys.excepthook = lambda *error: sys.exit(9)
    boom()
elif how == "broken hook":
    sys.excepthook = lambda *error: 1 / 0
    boom()
elif how == "unfinished":
    import threading
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    pools = ThreadPoolExecutor(1), ProcessPoolExecutor(1)
    is_over = threading.Event()  # set by what runs after the script's last line
    pools[1].submit(len, ()).add_done_callback(lambda done: print("a process has computed"))
    pools[0].submit(lambda: (pools[1].shutdown(), is_over.set()))
    threading.Thread(target=lambda: (is_over.wait(), print("saved by a thread"))).start()
    text, binary = open("text", "w+"), open("binary", "wb")
    text.write("left in a buffer"), binary.write(b"left, too")
    atexit.register(lambda: print("handler", sys.last_value))
    boom()
sys.exit(int(how))
"""
AFTER_JAX = """
import atexit, sys, types
for name, handler in (("api", "clean_up"), ("distributed", "shutdown")):
    module = sys.modules["jax._src." + name] = types.ModuleType(name)
    def wait(name=name):
        print("JAX waits in", name)
        {wait}
    setattr(module, handler, atexit.register(wait))
{more}
sys.exit({code})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("look", LOOK), ("fail", FAIL), ("syntax", "x = (\n")):
        (tmp_path / f"{name}.py").write_text(text)
        (tmp_path / "package").mkdir(exist_ok=True)
        (tmp_path / "package" / f"{name}.py").write_text(text)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(LOOK)  # without a pool: spawned processes do not find it
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", FAIL)
    return tmp_path


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "TORCHELASTIC_"))}
    return subprocess.run(
        [sys.executable, "-u", *words], cwd=folder, env=environ | variables, capture_output=True, text=True,
        timeout=LIMIT_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def as_worker(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run(folder, as_main.__file__, *words, **variables)


def as_jax_worker(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return as_worker(folder, "jax", *words, **variables)


ways = pytest.mark.parametrize("start", [as_worker, as_jax_worker], ids=["plain", "jax"])
Start = Callable[..., "subprocess.CompletedProcess[str]"]


def seen(ended: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    stdout, stderr = (re.sub("0x[0-9a-f]+", "0x", text) for text in (ended.stdout, ended.stderr))
    return ended.returncode, stdout, stderr


def see_all_ways(folder: Path, words: tuple[str, ...]) -> tuple[int, str, str]:
    """Run it by Python and as either worker, and return what is seen of all three."""
    how = ("module", *words[1:]) if words[0] == "-m" else ("script", *words)
    expected = seen(run(folder, *words))
    assert seen(as_worker(folder, *how)) == expected
    assert seen(as_jax_worker(folder, *how)) == expected
    return expected


@pytest.mark.parametrize(
    "words",
    [("look.py", "pool", "-b"), ("./look.py",), ("folder", "a"), ("-m", "package.look", "pool")],
    ids=["script", "script in a directory", "directory", "module"],
)
def test_a_script_sees_itself_as_under_python(folder: Path, words: tuple[str, ...]) -> None:
    code, stdout, stderr = see_all_ways(folder, words)
    assert (code, stderr, "[2, 4]" in stdout) == (0, "", "pool" in words)


@pytest.mark.parametrize(
    "words",
    [
        *(("fail.py", how) for how in ("raise", "interrupt", "text", "3", "-1", "4294967299", "hook", "broken hook")),
        ("syntax.py",),
        ("nowhere.py",),
        ("archive.zip", "raise"),
        ("-m", "package.fail", "raise"),
        ("-m", "package.nowhere"),
    ],
    ids=" ".join,
)
def test_a_failure_looks_as_under_python(folder: Path, words: tuple[str, ...]) -> None:
    assert see_all_ways(folder, words)[0] != 0


def test_what_a_failed_script_has_begun_is_finished_as_under_python(folder: Path) -> None:
    looks = []
    for words in (("fail.py",), *((as_main.__file__, *jax, "script", "fail.py") for jax in ((), ("jax",)))):
        ended = seen(run(folder, *words, "unfinished"))
        looks.append((ended, (folder / "text").read_text(), (folder / "binary").read_text()))
    assert looks[0] == looks[1] == looks[2]
    assert looks[1][0][1] == "a process has computed\nsaved by a thread\nhandler the reason\nhandler\n"
    assert looks[1][1:] == ("left in a buffer", "left, too")


@ways
def test_a_forked_child_of_the_script_writes_no_error_file_of_the_worker(folder: Path, start: Start) -> None:
    (folder / "forks.py").write_text("import os\nif os.fork() == 0: raise ValueError\nprint(os.wait()[1] >> 8)")
    ended = start(folder, "script", "forks.py", TORCHELASTIC_ERROR_FILE=str(folder / "error.json"))
    assert (ended.returncode, ended.stdout) == (0, "1\n")
    assert not (folder / "error.json").exists()


@ways
def test_run_path_runs_a_file_without_its_directory_on_the_path(folder: Path, start: Start) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "path.py").write_text("import sys\nprint(sys.argv, sys.path[0], __name__)\nsys.exit(4)")
    ended = start(folder, "path", "sub/path.py", "a")
    assert (ended.returncode, ended.stdout) == (4, "['sub/path.py', 'a']  __main__\n")


@ways
def test_an_exception_is_left_in_the_error_file_as_torch_does_it(folder: Path, start: Start) -> None:
    file = folder / "error.json"
    start(folder, "script", "fail.py", "raise", TORCHELASTIC_ERROR_FILE=str(file))
    message = json.loads(file.read_text())["message"]
    assert message["message"] == "ValueError: the reason"
    assert message["extraInfo"]["timestamp"].isdigit()
    shown = read_error(str(file))[0]
    assert shown is not None
    assert shown.startswith("Traceback")
    assert 'raise ValueError("the reason")' in shown
    assert "as_main" not in shown
    assert "main_failure" not in shown


def test_an_exit_code_is_left_with_the_place_where_the_script_ended(folder: Path) -> None:
    file = folder / "error.json"
    assert as_jax_worker(folder, "script", "fail.py", "3", TORCHELASTIC_ERROR_FILE=str(file)).returncode == 3
    assert json.loads(file.read_text())["message"]["message"] == "SystemExit: 3"
    assert "sys.exit(int(how))" in (read_error(str(file))[0] or "")
    file.unlink()
    assert as_jax_worker(folder, "script", "fail.py", "0", TORCHELASTIC_ERROR_FILE=str(file)).returncode == 0
    assert not file.exists()


def test_sys_exit_and_an_interruption_leave_no_error_file(folder: Path) -> None:
    file = folder / "error.json"
    for how in ("3", "text", "interrupt", "0"):
        as_worker(folder, "script", "fail.py", how, TORCHELASTIC_ERROR_FILE=str(file))
        assert not file.exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = (", "SyntaxError: '(' was never closed"),
        ("e = ValueError('two\\nlines')\ne.add_note('a note')\nraise e", "ValueError: two\nlines"),
    ],
    ids=["syntax", "note"],
)
def test_the_message_is_the_line_that_names_the_exception(folder: Path, code: str, message: str) -> None:
    if sys.version_info < (3, 11):
        code = code.replace("e.add_note('a note')\n", "")
    (folder / "bad.py").write_text(code)
    as_worker(folder, "script", "bad.py", TORCHELASTIC_ERROR_FILE=str(folder / "error.json"))
    assert json.loads((folder / "error.json").read_text())["message"]["message"] == message


def test_one_frame_of_ours_lies_below_the_script(folder: Path) -> None:
    (folder / "frames.py").write_text("import inspect\nprint(len(inspect.stack()))")
    assert as_worker(folder, "script", "frames.py").stdout == "2\n"


@ways
def test_an_error_file_that_the_script_has_written_stays(folder: Path, start: Start) -> None:
    file = folder / "error.json"
    file.write_text("its own")
    start(folder, "script", "fail.py", "raise", TORCHELASTIC_ERROR_FILE=str(file))
    assert file.read_text() == "its own"


def test_an_error_file_that_cannot_be_written_changes_nothing_else(folder: Path) -> None:
    ended = as_jax_worker(folder, "script", "fail.py", "3", TORCHELASTIC_ERROR_FILE=str(folder / "no" / "error.json"))
    assert ended.returncode == 3
    assert "cannot be written" in ended.stderr


@pytest.mark.parametrize("code", ["3", "'gone'"])
def test_after_a_failure_nobody_waits_in_jaxs_exit_handlers(folder: Path, code: str) -> None:
    script = AFTER_JAX.format(wait="import time; time.sleep(3600)", more="atexit.register(print, 'own')", code=code)
    (folder / "jaxlike.py").write_text(script)
    ended = as_jax_worker(folder, "script", "jaxlike.py")
    assert (ended.returncode, ended.stdout) == (3 if code == "3" else 1, "own\n")


def test_after_a_success_they_run(folder: Path) -> None:
    (folder / "jaxlike.py").write_text(AFTER_JAX.format(wait="pass", more="", code="0"))
    ended = as_jax_worker(folder, "script", "jaxlike.py")
    assert (ended.returncode, ended.stdout) == (0, "JAX waits in distributed\nJAX waits in api\n")


def test_an_exit_handler_that_hangs_is_cut_short_and_the_code_is_kept(folder: Path) -> None:
    script = """
import atexit, sys, time
sys._getframe(1).f_globals["_failure"]["EXIT_LIMIT_S"] = 0.05
atexit.register(time.sleep, 3600)
sys.exit(3)
"""
    (folder / "hangs.py").write_text(script)
    ended = as_jax_worker(folder, "script", "hangs.py")
    assert ended.returncode == 3
    assert "exit handlers and threads were not done" in ended.stderr


def test_an_interrupted_worker_ends_by_the_signal(folder: Path) -> None:
    assert as_jax_worker(folder, "script", "fail.py", "interrupt").returncode == -signal.SIGINT


@pytest.mark.parametrize("option", [None, socket.SO_REUSEPORT], ids=["plain", "like JAX's"])
def test_rank_0_does_not_listen_where_another_coordinator_does(folder: Path, option: int | None) -> None:
    (folder / "fine.py").write_text("print('runs')")
    with socket.socket() as other:
        if option is not None:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.setsockopt(socket.SOL_SOCKET, option, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        coordinator = {"JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}"}
        taken = as_jax_worker(folder, "script", "fine.py", RANK="0", **coordinator)
        assert (taken.returncode, taken.stdout) == (1, "")
        assert f"port {port} of JAX's coordinator is in use by another process" in taken.stderr
        assert as_jax_worker(folder, "script", "fine.py", RANK="1", **coordinator).returncode == 0


def test_two_workers_at_a_breakpoint_get_the_terminal_in_turn(folder: Path) -> None:
    # What goes on writes elsewhere: on the terminal its line and the next prompt could cut each other.
    went_on = "open('went-on-' + os.environ['RANK'], 'w').write(str(x))"
    (folder / "stops.py").write_text(f"import os\ndef work(x):\n    breakpoint()\n    {went_on}\n\nwork(7)\n")
    with Terminal() as terminal:
        workers = {rank: start_at(terminal, folder, environ={"RANK": rank, "LOCAL_WORLD_SIZE": "2"}) for rank in "01"}

        def find_waiting() -> list[str]:
            waiting = list_waiting_for_lock()
            return [rank for rank, worker in workers.items() if worker.pid in waiting]

        (waits,) = wait_until(find_waiting)
        holds = "10"[int(waits)]
        assert f"(Pdb rank {waits})" not in terminal.wait_for(f"(Pdb rank {holds}) ")
        terminal.type("p x\n")
        assert "7" in terminal.wait_for(f"(Pdb rank {holds}) ")
        assert find_waiting() == [waits]
        terminal.type("c\n")
        terminal.wait_for(f"(Pdb rank {waits}) ")
        terminal.type("c\n")
        terminal.rest()
        assert [worker.returncode for worker in workers.values()] == [0, 0]
    assert [(folder / f"went-on-{rank}").read_text() for rank in "01"] == ["7", "7"]


def start_at(terminal: Terminal, folder: Path, environ: dict[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start stops.py as a worker at this terminal."""
    command = [sys.executable, "-u", as_main.__file__, "script", "stops.py"]
    return terminal.start(command, cwd=folder, env=os.environ | environ, **options)


def list_waiting_for_lock() -> set[int]:
    lines = Path("/proc/locks").read_text().splitlines()
    return {int(line.split()[5]) for line in lines if "-> POSIX" in line}


FORKS = """
import os
pid = os.fork()
breakpoint(header="stopped")
if pid:
    os.waitpid(pid, 0)
    print("both", "went on")
"""


@pytest.mark.parametrize(("mode", "count"), [(os.O_RDWR, 2), (os.O_RDONLY, 1)])
def test_a_forked_child_waits_for_a_terminal_that_has_locks(folder: Path, mode: int, count: int) -> None:
    (folder / "stops.py").write_text(FORKS if count == 2 else "breakpoint()\nprint('both', 'went on')\n")
    with Terminal() as terminal:
        stdin = os.open(os.ttyname(terminal.theirs), mode | os.O_NOCTTY)
        environ = {"RANK": "3", "LOCAL_WORLD_SIZE": "2"}
        worker = start_at(terminal, folder, environ, stdin=stdin, start_new_session=True)
        os.close(stdin)
        shown = terminal.wait_for("(Pdb rank 3) ")
        if count == 2:
            children = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
            wait_until(lambda: {worker.pid, *map(int, children)} & list_waiting_for_lock())
            assert shown.count("stopped") == 1
            terminal.type("c\n")
            terminal.wait_for("(Pdb rank 3) ")
        terminal.type("c\n")
        terminal.wait_for("both went on")
        assert worker.wait(LIMIT_S) == 0


def test_a_debugger_that_the_environment_has_chosen_stays(folder: Path) -> None:
    (folder / "sitecustomize.py").write_text("import sys\nsys.breakpointhook = lambda: print('chosen')\n")
    (folder / "stops.py").write_text("breakpoint()\n")
    with Terminal() as terminal:
        environ = {"RANK": "0", "LOCAL_WORLD_SIZE": "2", "PYTHONPATH": str(folder)}
        worker = start_at(terminal, folder, environ)
        assert terminal.rest() == "chosen\n"
        assert worker.returncode == 0


def test_a_script_runs_where_the_current_directory_is_gone_or_a_debugger_runs_it(folder: Path) -> None:
    (folder / "says.py").write_text("print(type(__loader__).__name__, __file__)")
    gone = folder / "gone"
    gone.mkdir()
    script = str(folder / "says.py")
    leave = f"import os, runpy, sys; os.rmdir({str(gone)!r}); sys.argv = sys.argv[1:]; "
    by_debugger = "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'), sys.modules['__main__'].__dict__)"
    for how in (f"{leave} __loader__ = None; __file__ = sys.argv[0]; {by_debugger}",):
        words = [sys.executable, "-c", how, as_main.__file__, "script", script]
        done = subprocess.run(words, cwd=gone, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.stdout == f"SourceFileLoader {script}\n", done.stderr


@pytest.fixture
def page() -> Iterator[SharedPage]:
    made = shared_page.make()
    made.begin(1, None)
    yield made
    os.close(made.descriptor)


def run_with_page(
    page: SharedPage, folder: Path, script: str, limit: int = 0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run it as the first worker. `limit`: of open files, 0 for this process's own."""
    (folder / "ends.py").write_text(script)
    set_limit = ["-c", "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)"
                 "; os.execv(sys.executable, [sys.executable, *sys.argv[2:]])", str(limit)]  # fmt: skip
    command = [*(set_limit if limit else []), "-u", as_main.__file__, "script", "ends.py"]
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | page.list_variables(0) | variables,
        capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, pass_fds=[page.descriptor],
    )  # fmt: skip


def test_a_script_that_has_used_up_its_descriptors_leaves_the_type_of_its_exception(
    page: SharedPage, folder: Path
) -> None:
    no_more = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 4096))\n"
    run_with_page(page, folder, f"{no_more}raise KeyError('x')", limit=4096)
    assert page.read_last_words(0) == "\nTraceback (most recent call last):\nKeyError: \n"
    assert last_words.parse(page.read_last_words(0), 1).exception == "KeyError: "


EVIDENCE = """
import faulthandler, os, signal, sys
finders = [one for one in sys.meta_path if getattr(one, "__name__", "") == "torch"]
caught = next(line for line in open("/proc/self/status") if line.startswith("SigCgt:")).split()[1]
print(len(finders), os.path.exists("/proc/self/fd/112"), int(caught, 16) >> signal.SIGURG - 1 & 1)
print(faulthandler.is_enabled(), sum(int(each) > 2 for each in os.listdir("/proc/self/fd")))
"""


@pytest.mark.parametrize(
    ("evidence", "limit", "seen"),
    [
        ("auto", 0, "1 True 1\nTrue 4\n"),
        ("0", 0, "0 False 0\nTrue 3\n"),
        ("auto", 112, "1 False 0\nFalse 3\n"),
    ],
    ids=["by default", "switched off", "few descriptors"],
)
def test_what_shows_a_hang_takes_a_signal_and_a_descriptor_if_it_may_and_can(
    page: SharedPage, folder: Path, evidence: str, limit: int, seen: str
) -> None:
    """The page, the last words, the stack, and the directory that is listed."""
    variables = {"LAUNCHER_HANG_EVIDENCE": evidence, "LAUNCHER_RECORDER_SOCKET": str(folder / "socket")}
    ended = run_with_page(page, folder, EVIDENCE, limit, **variables)
    assert (ended.stdout, ended.stderr) == (seen, "")


def test_where_the_kernel_refuses_a_file_in_memory_the_stack_lies_in_shared_memory(folder: Path) -> None:
    script = """
import os
from launcher.ranks import as_main, main_start
def refuse(name): raise OSError(38, "Function not implemented")
os.memfd_create = refuse
main_start.prepare_evidence(as_main.load)
print(os.readlink("/proc/self/fd/112"))
"""
    ended = run(folder, "-c", script, PYTHONPATH=os.getcwd())
    assert ended.stdout.startswith("/dev/shm/"), ended.stderr
