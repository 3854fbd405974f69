"""What is tried on a GPU. Each check is called with `Notes` in a process of its own; see runner.py.

A check says what was seen, also where it is not what the guides say: then it failed, and the sentence has both.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from launcher.hardware.accelerators.nvidia import Detector
from tests.support.gpu.jobs import PROGRAMS, START_S, VARIABLE, Job, Memory, Sampler, Seen, expect, gib, meshctl
from tests.support.gpu.runner import FAILED, SEEN, Notes, NotPossibleError, can_import
from tests.support.hardware.devices import UUIDS, FakeNvml, add_nvidia, write
from tests.support.processes.tree import is_alive, state
from tests.support.waiting import wait_until

RECORDED = {"LAUNCHER_HANG_EVIDENCE": "1"}
SUM = 499500.0  # of the numbers below 1,000
LARGE = 0.6  # of the memory: two of them cannot be there at once
MODULES_REFUSED = {
    "opens_cuda": "import torch\ntorch.zeros(1, device='cuda')\n",
    "counts_devices": "import torch\ntorch.cuda.device_count()\n",
    "asks_whether_there_are_any": "import torch\ntorch.cuda.is_available()\n",
}
MODULES_PRETENDED = {
    "starts_a_thread": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\n",
    "does_nothing": "import decimal\n",
}


# What meshrun finds.


def nvml(notes: Notes) -> None:
    """GPUs by NVML, by the driver's files and by the PCI bus; what doctor and the first line of a job say."""
    with notes.trying("GPUs by NVML"):
        began_s = time.monotonic()
        found = make_detector(notes).detect(hide_variable())
        seconds = time.monotonic() - began_s
        kinds = [f"{each.model or 'no model'}, NUMA node {each.numa_node}, NVLink domain {each.domain or 'none'}"
                 for each in found.devices]  # fmt: skip
        problem = "" if "by NVML" in found.reason else "NVML did not answer"
        told = f"{found.reason}; {'; '.join(kinds)}; {seconds:.2f} s"
        expect(notes, "GPUs by NVML", problem, told, seconds=seconds, ids=[each.id for each in found.devices])
    ids = [each.id for each in found.devices]
    if not notes.pretend:
        with notes.trying("the same ids as nvidia-smi"):
            text = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
            listed = re.findall(r"UUID: ((?:GPU|MIG)-[\w/-]+)", text)
            expect(notes, "the same ids as nvidia-smi", "" if set(ids) <= set(listed) else "other ids", f"{listed}")
    with notes.trying("GPUs without NVML"):
        sys.modules["pynvml"] = None  # type: ignore[assignment]  # as where nvidia-ml-py is not installed
        try:
            others = make_detector(notes, has_nvml=False).detect(hide_variable())
        finally:
            del sys.modules["pynvml"]
        same = [each.id for each in others.devices] == ids
        problem = "" if same or not any(each.id.startswith("GPU-") for each in others.devices) else "other ids"
        problem = problem or ("" if len(others.devices) == len(ids) else "another number")
        expect(notes, "GPUs without NVML", problem, f"{others.reason}; {[each.id for each in others.devices]}")
    with notes.trying("GPUs by the PCI bus"):
        bus = make_detector(notes)._read_pci()
        if not bus.gpus:
            raise NotPossibleError("the PCI bus shows no GPU")
        problem = "" if len(bus.gpus) == len(ids) else f"{len(ids)} by NVML"
        expect(notes, "GPUs by the PCI bus", problem, f"{len(bus.gpus)} found, {[each.uuid for each in bus.gpus]}")
    with notes.trying("meshctl doctor"):
        kinds_ = {each["kind"]: each for each in json.loads(meshctl("doctor", "--json"))["devices"]}
        if notes.pretend:
            raise NotPossibleError("doctor looks at this machine, where no GPU is")
        problem = "" if kinds_["nvidia"]["count"] == len(ids) else f"{len(ids)} by NVML"
        expect(notes, "meshctl doctor", problem, f"{kinds_['nvidia']['count']}: {kinds_['nvidia']['reason']}")
    with notes.trying("one worker per GPU"):
        command = [sys.executable, "-m", "launcher", "--standalone", "--no-python", "echo", "hello"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
        words = re.search(r"meshrun: (\d+ worker.*)", done.stderr)
        problem = "" if done.stdout.count("hello") == (1 if notes.pretend else len(ids)) else "another number"
        expect(notes, "one worker per GPU", problem, words[1] if words else done.stderr[-200:])


def visible(notes: Notes) -> None:
    """Values of CUDA_VISIBLE_DEVICES: the devices that meshrun, CUDA's driver and torch make of them."""
    ids = [each.id for each in make_detector(notes).detect(hide_variable()).devices]
    if not ids:
        raise NotPossibleError("no NVIDIA GPU is found")
    forms = make_forms(ids)
    counts = count_by_torch(notes, forms)
    environs = [hide_variable() | ({} if form is None else {VARIABLE: form}) for form in forms]
    with ThreadPoolExecutor(5) as pool:  # each start of CUDA may have to wake the device
        shown = [pool.submit(list_by_cuda, notes, form, environ) for form, environ in zip(forms, environs, strict=True)]
    for form, environ, count, answer in zip(forms, environs, counts, shown, strict=True):
        name = f"{VARIABLE} unset" if form is None else f"{VARIABLE}={form!r}"
        with notes.trying(name):
            found = make_detector(notes).detect(environ)
            mine = [each.id for each in found.devices]
            theirs = answer.result()
            told = f"meshrun {len(mine)}, CUDA {len(theirs)}, torch {'not asked' if count is None else count}"
            told += f" ({found.mistake})" if found.mistake else ""
            limit = len(theirs) if count is None else min(count, len(theirs))
            is_refused = bool(found.mistake) and not mine  # a value that CUDA reads in part is refused, on purpose
            problem = "" if is_refused or mine == theirs[:limit] else "not the same devices"
            expect(notes, name, problem, told, meshrun=mine, cuda=theirs, torch=count)


def make_forms(ids: list[str]) -> list[str | None]:
    """Values to try on a machine with these devices."""
    first, count = ids[0], len(ids)
    beginning = first[: len("GPU-") + 6]
    forms: list[str | None] = [None, "", "-1", "NoDevFiles", "0", "+0", " 0", "00", "0gpu", "0,-1", "0,,", ",0", "0,0"]
    return [*forms, f"{count}", f"0,{count}", first, beginning, "GPU-00000000", f"{first},{first}", f"{first},0"]


def count_by_torch(notes: Notes, forms: list[str | None]) -> list[int | None]:
    """torch's counts; None for each that it does not tell."""
    if notes.pretend:
        return [len(pretend_cuda(form, list(UUIDS))) for form in forms]
    if not can_import("torch"):
        return [None] * len(forms)
    command = [sys.executable, str(PROGRAMS / "torch_devices.py"), json.dumps(forms)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, stdin=subprocess.DEVNULL)
    try:
        found: list[int | None] = json.loads(done.stdout)
    except ValueError:
        told = (done.stderr.strip().splitlines() or ["without a word"])[-1]
        notes.note("torch's counts", FAILED, f"ended with {done.returncode}: {told}")
        return [None] * len(forms)
    return found


def list_by_cuda(notes: Notes, form: str | None, environ: dict[str, str]) -> list[str]:
    """What the driver shows a process. Raises AssertionError with what it says."""
    if notes.pretend:
        return pretend_cuda(form, list(UUIDS))
    command = [sys.executable, str(PROGRAMS / "cuda_devices.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environ, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f"CUDA's driver: {(done.stderr.strip().splitlines() or ['without a word'])[-1]}")
    return done.stdout.split()


def pretend_cuda(form: str | None, ids: list[str]) -> list[str]:
    """What CUDA makes of the forms above, as documented, of a device each; torch alike."""
    if form is None:
        return ids
    found: list[str] = []
    for entry in map(str.strip, form.split(",")):
        number = re.match(r"\+?\d+", entry)
        named = [each for each in ids if entry.startswith("GPU-") and each.startswith(entry)]
        chosen = named or ([ids[int(number[0])]] if number and int(number[0]) < len(ids) else [])
        if len(chosen) != 1 or (found and entry.startswith("GPU-") is not form.startswith("GPU-")):
            break
        if chosen[0] in found:
            return []
        found += chosen
    return found


def make_detector(notes: Notes, *, has_nvml: bool = True) -> Detector:
    """The product's own, at this machine or at a made-up one."""
    if not notes.pretend:
        return Detector()
    root = notes.directory / "root"
    if not root.exists():
        for number, uuid in enumerate(UUIDS):
            address = f"0000:{number + 1:02x}:00.0"
            add_nvidia(root, address, uuid, number)
            write(root / f"sys/bus/pci/devices/{address}/vendor", "0x10de\n")
            write(root / f"sys/bus/pci/devices/{address}/class", "0x030200\n")
            write(root / f"dev/nvidia{number}")
    return Detector(root=str(root), nvml=FakeNvml() if has_nvml else None)


def hide_variable() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


# Workers that hold a context.


def kill(notes: Notes) -> None:
    """kill -9 of a worker and of an agent while a worker holds most of the memory: when it is free, and who gets it."""
    memory = Memory(notes)
    before, large = memory.used(), memory.part(LARGE)
    options = ("--nproc-per-node=1", "--max-restarts=3")
    with Job(notes, "killed", *options, program=("hold", large)) as job:
        first = job.seen(1)
        times = {
            "to the worker's first line": first["began_s"] - job.began_s,
            "import of torch": first["imported_s"] - first["began_s"],
            "context": first["opened_s"] - first["imported_s"],
        }
        told = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in times.items())
        expect(notes, "a worker opens a context", complain(first), told, **times)
        for round in (1, 2):
            what = f"kill -9 of a worker that holds {gib(large)}, time {round}"
            with notes.trying(what):
                tell_kill(notes, what, memory, job, round, free=before + large // 10)
        last = job.seen(3)
        killed_s = time.monotonic()
        with notes.trying("kill -9 of the agent"):
            os.kill(job.process.pid, signal.SIGKILL)
            wait_until(lambda: not is_alive(last["pid"]), 30, "the worker's end")
            ended_s = time.monotonic() - killed_s
            wait_until(lambda: memory.used() <= before + large // 10, 20, "the memory to be free")
            freed_s = time.monotonic() - killed_s
            told = f"its worker was gone after {ended_s:.2f} s, its memory free after {freed_s:.2f} s"
            notes.note("kill -9 of the agent", SEEN, told, ended_s=ended_s, freed_s=freed_s)


def tell_kill(notes: Notes, what: str, memory: Memory, job: Job, round: int, free: int) -> None:
    """Kill rank 0 of this round, and note what became of its memory and of the next round."""
    seen = job.seen(round)
    with Sampler(memory) as sampler:
        killed_s = time.monotonic()
        os.kill(seen["pid"], signal.SIGKILL)
        after = job.seen(round + 1)
    freed_s = sampler.first_below(free, killed_s)
    began_s, had_s = after["began_s"] - killed_s, after["told_s"] - killed_s
    freed = "not seen to be free" if freed_s is None else f"free after {freed_s:.2f} s"
    told = f"memory {freed}; the next worker began after {began_s:.2f} s and had as much after {had_s:.2f} s"
    told += ", a pause for short rounds included" if "pausing for" in job.errors else ""
    refused = f"it was refused {after['refusals']} times" if after["refusals"] else ""
    expect(
        notes, what, refused or complain(after), told,
        freed_s=freed_s, began_s=began_s, had_s=had_s, refusals=after["refusals"],
    )  # fmt: skip


def complain(seen: Seen) -> str:
    """What is wrong with a worker that has computed on the device; "" for nothing."""
    return "" if seen["sum"] == SUM else f"the sum is {seen['sum']}"


def preload(notes: Notes) -> None:
    """--preload torch, and CUDA in the forked workers, also after a restart; modules that open CUDA themselves."""
    memory = Memory(notes)
    module, size = ("decimal" if notes.pretend else "torch"), memory.part(0.05)
    what = "CUDA in workers forked with torch in memory"
    with notes.trying(what):
        options = (f"--preload={module}", "--nproc-per-node=2", "--max-restarts=2")
        with Job(notes, "warm", *options, program=("hold", size)) as job:
            both = [job.seen(1, rank) for rank in (0, 1)]
            cold = "" if notes.pretend or all(each["had_torch"] for each in both) else "a worker had no torch"
            told = f"{job.line('preloaded .*? s;')} contexts {tell_contexts(both)}"
            expect(notes, what, cold or complain(both[0]) or complain(both[1]), told)
            killed_s = time.monotonic()
            os.kill(both[0]["pid"], signal.SIGKILL)
            both = [job.seen(2, rank) for rank in (0, 1)]
            seconds = max(each["opened_s"] for each in both) - killed_s
            told = f"kill -9 of one of two: both have a context again after {seconds:.2f} s"
            cold = "" if notes.pretend or all(each["had_torch"] for each in both) else "a worker had no torch"
            expect(notes, "restart of warm workers", cold or complain(both[1]), told, seconds=seconds)
    modules = MODULES_PRETENDED if notes.pretend else MODULES_REFUSED
    for name, text in modules.items():
        what = f"--preload of a module that {name.replace('_', ' ')}"
        with notes.trying(what):
            tell_refusal(notes, what, name, text)


def tell_contexts(seen: list[Seen]) -> str:
    return ", ".join(f"{each['opened_s'] - each['began_s']:.2f} s" for each in seen)


def tell_refusal(notes: Notes, what: str, name: str, text: str) -> None:
    """Preload a module: refused is well, and so are workers that use CUDA all the same."""
    folder = notes.directory / f"modules_{name}"
    folder.mkdir()
    (folder / f"{name}.py").write_text(text)
    path = f"{folder}:{os.environ.get('PYTHONPATH', '')}"
    options = (f"--preload={name}", "--nproc-per-node=1")
    with Job(notes, name, *options, program=("hold", 100), environ={"PYTHONPATH": path}) as job:
        try:
            seen = job.seen(1, limit_s=30)
        except AssertionError as error:
            refused = re.search(r"error: (--preload: .*)", job.errors)
            told = f"refused: {refused[1]}" if refused else str(error)
            expect(notes, what, "" if refused else "not refused, and no worker ran", told)
            return
        expect(notes, what, complain(seen), "accepted, and the forked worker computes on the device")


def binding(notes: Notes) -> None:
    """--device-binding visible: each worker sees its own device, as device 0."""
    found = list(make_detector(notes).detect(hide_variable()).devices)
    pretend = ("--devices=pretended:1", f"--visible-env={VARIABLE}") if notes.pretend else ()
    count = 1 if notes.pretend else len(found)
    cases: list[tuple[str, dict[str, str]]] = [("unset", {}), ("a UUID", {VARIABLE: found[-1].id})]
    for name, variables in cases:
        what = f"--device-binding visible, {VARIABLE} {name}"
        with notes.trying(what):
            job_name = name.replace(" ", "_")
            environ = {"LAUNCHER_DEVICE_BINDING": "visible", **variables}
            options = ("--device-binding=visible", *pretend)
            with Job(notes, job_name, *options, program=("hold", 100), environ=environ) as job:
                workers = [job.seen(1, rank) for rank in range(1 if variables else count)]
                expected = [found[-1].id] if variables else [each.id for each in found[:count]]
                are_own = [each["uuid"] for each in workers] == expected
                are_first = all(each["variables"]["LOCAL_RANK"] == "0" and each["devices"] == 1 for each in workers)
                problem = "" if are_own and are_first else "not its own device as device 0"
                told = "; ".join(
                    f"{VARIABLE}={each['variables'].get(VARIABLE)}, LOCAL_RANK={each['variables']['LOCAL_RANK']}, "
                    f"{each['devices']} device {each['uuid']}"
                    for each in workers
                )
                expect(notes, what, problem, told)


# What is seen of a job.


def why(notes: Notes) -> None:
    """A rank waits for a kernel that does not end, and the other one for it; then it is killed."""
    options = ("--nproc-per-node=2", "--max-restarts=1")
    with Job(notes, "hung", *options, program=("hang",), environ=RECORDED) as job:
        workers = [job.seen(1, rank) for rank in (0, 1)]
        found: dict[str, Any] = {}

        def is_named() -> bool:
            found.update(json.loads(meshctl("why", "--json", str(job.process.pid))))
            return found["culprits"] == [1]

        what = "why, a rank waits for a kernel that does not end"
        with notes.trying(what):
            began_s = time.monotonic()
            with contextlib.suppress(AssertionError):
                wait_until(is_named, 15)
            problem = "" if found.get("culprits") == [1] else f"it names {found.get('culprits')}"
            told = f"{' / '.join(found.get('sentences', []))}; process {state(workers[1]['pid'])}"
            expect(notes, what, problem, f"{told}; {time.monotonic() - began_s:.1f} s")
        what = "kill -9 of a worker whose kernel does not end"
        with notes.trying(what):
            killed_s = time.monotonic()
            os.kill(workers[1]["pid"], signal.SIGKILL)
            again = [job.seen(2, rank) for rank in (0, 1)]
            told = f"the next round computes after {max(each['told_s'] for each in again) - killed_s:.2f} s"
            expect(notes, what, complain(again[1]), told)
            if code := job.finish():
                notes.note(what, FAILED, f"the job ended with {code}: {job.last_words()}")


def recorder(notes: Notes) -> None:
    """The flight recorder of NCCL, of one rank: NCCL does not take two of one GPU."""
    backend = "gloo" if notes.pretend else "nccl"
    options = ("--nproc-per-node=1", f"--log-dir={notes.directory / 'logs'}")
    what = f"flight recorder of {backend}, one rank"
    with Job(notes, "recorded", *options, program=("collect", backend), environ=RECORDED) as job, notes.trying(what):
        seen = job.seen(1)
        answer = json.loads(meshctl("why", "--json", str(job.process.pid)))
        files = sorted((notes.directory / "logs").glob("*_*/incident_*/rank_0.recorder.json*"))
        if not files and not seen["can_serve"]:
            raise NotPossibleError(f"torch {seen['torch']} does not serve its recorder")
        if not files:
            raise AssertionError(f"no dump, torch {seen['torch']}: {answer.get('sentences')} {answer.get('gaps')}")
        entries = read_entries(files[-1])
        names = [entry.get("profiling_name") for entry in entries]
        states = sorted({str(entry.get("state")) for entry in entries})
        problem = "" if len(names) >= 10 else "fewer than the ten that were called"
        told = f"{len(names)} entries, {sorted(set(map(str, names)))}, {states}; torch {seen['torch']}"
        expect(notes, what, problem, f"{told}; why: {' / '.join(answer['sentences'])}", entries=len(names))
        if code := job.finish():
            notes.note(what, FAILED, f"the job ended with {code}: {job.last_words()}")


def read_entries(file: Path) -> list[dict[str, Any]]:
    """The entries of a dump, or of two: of NCCL's recorder and of the other."""
    data = file.read_bytes()
    found = json.loads(gzip.decompress(data) if file.suffix == ".gz" else data)
    return [entry for dump in (found if isinstance(found, list) else [found]) for entry in dump.get("entries", [])]


def metrics(notes: Notes) -> None:
    """Memory of the worker's device on the page of metrics, beside what NVML says."""
    memory = Memory(notes)
    size = memory.part(0.25)
    what = "meshrun_worker_device_memory_used_bytes"
    options = ("--nproc-per-node=1", "--metrics-port=0")
    with Job(notes, "measured", *options, program=("hold", size)) as job, notes.trying(what):
        job.seen(1)
        url = wait_until(lambda: job.line(r"http://\S+/metrics"), 10, "the address of the metrics")
        pattern = re.compile(rf"^{what}(?:\{{[^}}]*\}})? (\S+)", re.MULTILINE)
        matches: list[str] = []

        def is_there() -> bool:
            with urllib.request.urlopen(url, timeout=5) as page:
                matches[:] = pattern.findall(page.read().decode())
            return bool(matches)

        with contextlib.suppress(AssertionError):
            wait_until(is_there, 2 if notes.pretend else 10)
        if not matches and notes.pretend:
            raise NotPossibleError("the agent sees no GPU here")
        if not matches:
            raise AssertionError("it is not on the page")
        read, used = float(matches[0]), memory.used()
        problem = "" if size <= read <= memory.total and abs(read - used) < 0.02 * memory.total else "they differ"
        expect(notes, what, problem, f"{gib(read)}; NVML says {gib(used)}, the worker holds {gib(size)} and a context")


def jax(notes: Notes) -> None:
    """JAX on the GPU, before and after kill -9 of its worker, with the memory that it takes by itself."""
    options = ("--framework=jax", "--nproc-per-node=1", "--max-restarts=2")
    kinds = "cpu" if notes.pretend else "gpu"
    with Job(notes, "jax", *options, program=("jax",)) as job:
        what = "JAX computes on the device"
        with notes.trying(what):
            seen = job.seen(1)
            told = f"{seen['devices']}, JAX {seen['jax']}; {seen['told_s'] - job.began_s:.2f} s from the command"
            is_there = bool(seen["devices"]) and seen["devices"][0].startswith(kinds)
            expect(notes, what, complain(seen) or ("" if is_there else f"no {kinds}"), told)
            killed_s = time.monotonic()
            os.kill(seen["pid"], signal.SIGKILL)
            what = "kill -9 of a worker of JAX"
            after = job.seen(2, limit_s=START_S)
            told = f"the next worker computes after {after['told_s'] - killed_s:.2f} s on {after['devices']}"
            expect(notes, what, complain(after) or ("" if after["devices"] == seen["devices"] else "elsewhere"), told)
            if code := job.finish():
                notes.note(what, FAILED, f"the job ended with {code}: {job.last_words()}")
