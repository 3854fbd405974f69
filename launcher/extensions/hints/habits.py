"""What users of other launchers write out of habit, and what to write here.

A word in these tables is none of ours: it is looked up once it was refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from launcher.config.options.readers import Option
from launcher.model.errors import sanitize, suggest

_HABITS = (
    ("set --nproc-per-node to the workers of one node",
     "n np ngpus num-gpus n-gpus gpus-per-node ntasks-per-node nprocs num-procs num-workers processes-per-node ppn"),
    ("set --nproc-per-node to the workers of one node: this counts those of all nodes",
     "num-processes ntasks world-size"),
    ("set --nnodes to the number of nodes", "N num-machines num-nodes nodes nnode"),
    ("set --nnodes MIN:MAX", "min-np max-np min-nodes max-nodes"),
    ("write -j 2x8 as --nnodes 2 --nproc-per-node 8", "j"),
    ("set --node-rank, or leave it out: with --rdzv-endpoint ranks are assigned", "machine-rank rank node-id"),
    ("set --rdzv-endpoint HOST:PORT, the same on all nodes", "main-process-ip main-process-port master master-ip port "
     "init-method dist-url coordinator-address"),
    ("set CUDA_VISIBLE_DEVICES to choose GPUs, and --nproc-per-node to their number", "gpu-ids device-ids gpus "
     "cuda-devices visible-devices"),
    ("set --nproc-per-node gpu for a worker on each GPU", "multi-gpu"),
    ("set --nproc-per-node cpu", "cpu use-cpu"),
    ("start the same command on every node, by srun, mpirun or pods, with --rdzv-endpoint FIRST-NODE:29400",
     "H hostfile hosts host machinefile nodelist hostlist launcher ips"),
    ("start it on the nodes that are to run, and set CUDA_VISIBLE_DEVICES to choose GPUs", "i e include exclude"),
    ("export the variable: workers inherit the environment", "x genv env export"),
    ("set --numa-binding to bind workers to CPUs", "bind-to bind-cores-to-rank cpu-bind"),
    ("set --start-timeout to the seconds to wait for nodes", "timeout rdzv-timeout join-timeout start-time-out"),
    ("set --max-restarts", "restarts retries max-retries"),
    ("write the options on the command line, or as LAUNCHER_ variables: no file of options is read",
     "config config-file"),
    ("leave it out: it has no meaning here",
     "no-ssh ssh-port force-multi launcher-args allow-run-as-root oversubscribe map-by same-network"),
    ("leave it out: meshctl status, why and events show what a run does", "v verbose debug q quiet"),
    ("put it after the name of the script, which reads it", "mixed-precision dynamo-backend use-fsdp use-deepspeed "
     "deepspeed deepspeed-config deepspeed-config-file zero-stage gradient-accumulation-steps fp16 bf16 seed epochs "
     "batch-size lr learning-rate backend resume"),
)  # fmt: skip
_OPTIONS: Mapping[str, str] = {name: step for step, names in _HABITS for name in names.split()}
_MESHCTL = ("status", "ps", "logs", "events", "why", "top", "serve", "stop", "drain", "undrain", "doctor", "measure",
            "clean", "takeover", "plan")  # fmt: skip
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "meshrun")
_BEFORE = ("srun", "ssh", "pdsh", "jsrun", "flux", "sbatch", "kubectl", "docker")


def explain_unknown(word: str, known: Mapping[str, str], settings: Mapping[str, Option]) -> tuple[str, str]:
    """Return the sentence and the hint for an unknown option. `known`: name to flag of all; `settings`: by name."""
    spelling = word.partition("=")[0]
    name = spelling.lstrip("-").replace("_", "-")
    if setting := settings.get(name):
        return f"unknown option {sanitize(spelling)}", f"set {setting.flag}"
    question = explain_option(spelling) or suggest(name, known)
    if not question and not spelling.startswith("--"):
        spelling = spelling[:2]  # what follows in -p1234 is a value
    hint = question or "run meshrun -h for the options; options of the script go after its name"
    return f"unknown option {sanitize(spelling)}", hint


def explain_option(spelling: str) -> str:
    """Return the next step for an option of others, `spelling` with its dashes; "" if nobody has it."""
    name = spelling.lstrip("-").replace("_", "-")
    return _OPTIONS.get(name) or _OPTIONS.get(name.lower(), "")


def explain_command(word: str) -> str:
    """Return the next step for a word where a script belongs; "" for one that may be a misspelt script."""
    called, name = sanitize(word), word.rpartition("/")[2]
    if name.rstrip("0123456789.") == "python":  # a command in front of which meshrun was written
        return f"leave out {called}: meshrun starts it (or add --no-python)"
    if word == "help":
        return "run meshrun -h"
    if word in _MESHCTL:
        return f"run meshctl {word}"
    if name in _LAUNCHERS:
        command = "accelerate launch" if name == "accelerate" else called
        return f"leave out {command}: meshrun takes its place, with the options of torchrun"
    if word in _BEFORE:
        return f"put {word} in front of meshrun, not after it"
    if word in ("launch", "run"):
        return f"leave out {word}: the script comes first"
    if "/" not in word and shutil.which(word) is not None:
        return f"add --no-python to run the program {called}"
    return ""
