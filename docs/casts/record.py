"""Record how `meshctl top` shows the death of a node: three agents on loopback, of which one is killed.

`python docs/casts/record.py docs/casts/node-death.cast` writes an asciinema v2 cast: a header of one line, then a line
for each piece of output, [seconds, "o", text]. The screen is a pseudo terminal of 100 x 26.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

COLUMNS, ROWS = 100, 26
RUN, NODES, LOST = "exp-41", ("red", "green", "blue"), "blue"
KILL_S, QUIT_S, LIMIT_S = 5.0, 14.0, 25.0
BEFORE_S = 40.0  # of training: a job has more behind it than its start
SCRIPT = """
import itertools, os, time
from pathlib import Path
from launcher.worker import progress
saved = Path("step")
data = bytearray(64 << 20)
for step in itertools.count(int(saved.read_text()) if saved.exists() else 0):
    until = time.monotonic() + 0.02
    while time.monotonic() < until:
        data[step % len(data)] ^= 1
    time.sleep(0.18)
    progress(step)
    if os.environ["RANK"] == "0" and step % 10 == 0:
        saved.with_suffix(".new").write_text(str(step))
        os.replace("step.new", "step")
"""
BIN = Path(sys.executable).parent


def start_node(name: str, port: int, directory: Path) -> subprocess.Popen[bytes]:
    options = {
        "--nnodes": "2:3", "--nproc-per-node": "2", "--rdzv-backend": "c10d", "--rdzv-endpoint": f"127.0.0.1:{port}",
        "--rdzv-id": RUN, "--node-name": name, "--log-dir": str(directory / f"logs-{name}"), "--redirects": "3",
        "--max-restarts": "3",
    }  # fmt: skip
    words = [word for pair in options.items() for word in pair]
    return subprocess.Popen(
        [str(BIN / "meshrun"), *words, str(directory / "train.py")],
        cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=(directory / f"{name}.txt").open("wb"), start_new_session=True,
    )  # fmt: skip


def show_top() -> tuple[int, int]:
    """Start `meshctl top` on a terminal of its own. Return its pid, and the terminal's other end."""
    pid, end = os.forkpty()
    if pid == 0:
        environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        # The size has to be there before the program looks.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        os.execve(BIN / "meshctl", ["meshctl", "top", RUN], environment)
    return pid, end


def record(end: int, killed: subprocess.Popen[bytes]) -> list[tuple[float, str, str]]:
    """Kill a node's agent while top is shown, and leave top by its key. Return what the terminal got."""
    decoder, found, begun = codecs.getincrementaldecoder("utf-8")("replace"), [], time.monotonic()
    has_quit = False
    while (now_s := time.monotonic() - begun) < LIMIT_S:
        if now_s > KILL_S and killed.poll() is None:
            killed.kill()
        if now_s > QUIT_S and not has_quit:
            os.write(end, b"q")
            has_quit = True
        if not select.select([end], [], [], 0.1)[0]:
            continue
        try:
            data = os.read(end, 65536)
        except OSError:  # the program has ended
            break
        if text := decoder.decode(data):
            found.append((round(time.monotonic() - begun, 3), "o", text))
    return found


def main(path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "train.py").write_text(SCRIPT)
        agents: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for node in NODES:
                agents[node] = start_node(node, port, directory)
                wait_for_store(port)  # the first node's, so that the one that is killed does not serve it
            wait_for_ranks(2 * len(NODES))
            time.sleep(BEFORE_S)
            pid, end = show_top()
            events = record(end, agents[LOST])
            os.close(end)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        finally:
            for agent in agents.values():
                agent.terminate()
            for agent in agents.values():
                agent.wait(30)
    header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "meshctl top: a node is lost"}
    path.write_text("".join(json.dumps(each, ensure_ascii=False) + "\n" for each in (header, *events)))


def wait_for_store(port: int) -> None:
    """Wait until the store answers. Raises TimeoutError after LIMIT_S."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError(f"no store on port {port} after {LIMIT_S:g} s")


def wait_for_ranks(count: int) -> None:
    """Wait until all ranks run. Raises TimeoutError after LIMIT_S."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        done = subprocess.run([BIN / "meshctl", "ps", RUN], capture_output=True, text=True)
        if done.stdout.count("running") >= count:
            return
        time.sleep(0.3)
    raise TimeoutError(f"not {count} ranks run after {LIMIT_S:g} s: {done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
