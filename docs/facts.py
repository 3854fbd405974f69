"""Writes reference/worker-variables.md, devices.md and locality.md from the tables that the code itself reads.

`python docs/facts.py` after a change of these tables (`make docs` does it); a test compares:
launcher/ranks/environments/variables.py, launcher/hardware/accelerators/rules.py, launcher/locality/keys.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import groupby
from pathlib import Path

from launcher.hardware.accelerators.rules import RULES
from launcher.locality import keys
from launcher.locality.gather import BUILT_IN, INFORMATIONAL, LIMIT_S
from launcher.locality.sources.cloud_detection import CLOUD_SIGNATURES
from launcher.model.locality_path import LEVELS
from launcher.ranks.environments.variables import VARIABLE_DESCRIPTIONS

WORKERS = """\
# Worker variables

<!-- Made from launcher/ranks/environments/variables.py by `python docs/facts.py`; a test keeps it in step. -->

What a worker finds in its environment, beside what the agent had in its own. Where a variable is not ours, its source
is the code or page that says how it is read.

"""
WORKERS_TAIL = """\
## Mesh

For `--mesh pp=4,dp=*,tp=8` and rank 26 of 224:

| variable | value |
|---|---|
| `MESH_AXES` | `pp,dp,tp` |
| `MESH_SHAPE` | `4,7,8` |
| `MESH_COORDS` | `0,3,2` |
| `MESH_TP_RANK`, `MESH_TP_SIZE` | `2`, `8` |

Without `--mesh` there is one axis, `dp`. Sizes may differ between rounds, so read them afresh after a restart.

## Taken away

The credentials of the store and the job's secret (`LAUNCHER_ETCD_USER`, `LAUNCHER_ETCD_PASSWORD`,
`LAUNCHER_STORE_TOKEN`, `LAUNCHER_JOB_SECRET`, and their `_FILE` forms) do not reach workers, nor a
[health check](../guides/health.md).

Variables by which another launcher tells its own task who it is (`SLURM_PROCID`, `SLURM_STEP_*`,
`OMPI_COMM_WORLD_*`, `PMI_*` and their like) do not reach workers: they describe the agent, and every worker would take
them for its own. What describes the whole job, such as `SLURM_JOB_ID`, stays.

Nor do the variables by which [job controllers](../guides/controllers.md) tell a pod's only JAX process its number
(`PROCESS_ID`, `NUM_PROCESSES`, `COORDINATOR_ADDRESS`; `JAX_PROCESS_ID`, `JAX_NUM_PROCESSES`,
`JAX_COORDINATOR_ADDRESS`; `NODE_RANK`, `NNODES` beside the latter), where all of one controller's are there.
"""
FRAMEWORKS = {"": "In every worker", "jax": "Under JAX", "tpu": "On TPU chips", "xla": "Under torch_xla"}

DEVICES = """\
# Devices

<!-- Made from launcher/hardware/accelerators/rules.py by `python docs/facts.py`; a test keeps it in step. -->

By which rules devices are found, chosen and shown to workers, and where each rule is from. *tried*: on such a machine.
*read*: in the source of what obeys it. *documented*: by its vendor. What is only read or documented has not been tried
on that hardware.

"""
KINDS = {
    "nvidia": "NVIDIA GPUs", "amd": "AMD GPUs", "intel": "Intel GPUs", "tpu": "TPU chips", "cpu": "CPUs",
    "ascend": "Ascend NPUs", "habana": "Gaudi", "neuron": "Neuron cores",
}  # fmt: skip

LOCALITY = f"""\
# Locality

<!-- Made from launcher/locality/sources by `python docs/facts.py`; a test keeps it in step. -->

Who says where a node stands in the network, by which key, and which level that is taken for. Nothing of it has been
tried on the network in question; how sure a row is stands beside it.

Levels, outermost first: {", ".join(f"`{level}`" for level in LEVELS)}.
`leaf` is the switch or rack next to the node, `spine` joins leaves, `core` joins spines, and the numbered tiers are
further out.

## Sources

What the user says (`--locality`, `--locality-file`, `--locality-command`) counts for more than all that is found. Then
come these, the most trusted first. Those of which a machine shows a sign are asked together, and have {LIMIT_S:g} s.
The keys of one family are of one tree of switches; levels of switches come from the first family of a source that has
any, never from two.

"""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; nothing in a cell ends it."""
    lines = [heads, ["---"] * len(heads), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def workers() -> str:
    """The page of worker variables."""
    found = [WORKERS]
    for framework in dict.fromkeys(meaning.framework for meaning in VARIABLE_DESCRIPTIONS):
        rows = (
            (f"`{one.variable}`", one.description, one.readers, one.source)
            for one in VARIABLE_DESCRIPTIONS
            if one.framework == framework
        )
        found.append(f"## {FRAMEWORKS.get(framework, framework)}\n\n")
        found.append(table(("variable", "value", "read by", "source"), rows))
    return "".join((*found, WORKERS_TAIL))


def devices() -> str:
    """The page of devices."""
    found = [DEVICES]
    for kind, rules in groupby(RULES, lambda rule: rule.kind):
        found.append(f"## {KINDS.get(kind, kind)}\n\n")
        rows = ((rule.subject, rule.answer, rule.source, rule.evidence) for rule in rules)
        found.append(table(("", "rule", "source", "how sure"), rows))
    return "".join(found).rstrip("\n") + "\n"


def locality() -> str:
    """The page of locality."""
    found = [LOCALITY, table(("source", "what it is"), ((f"`{name}`", _purpose(name)) for name in BUILT_IN))]
    weak = " and ".join(f"`{name}`" for name in INFORMATIONAL)
    found.append(f"Beside them there are {weak}: {_lowered(_purpose('infiniband'))}\n\n")
    found.append(f"## Signs of clouds\n\nA metadata server is asked only where the firmware says so.\n\n{_signs()}")
    for source in dict.fromkeys(key.source for key in keys.KEYS):
        found.append(f"## Keys of {source}\n\n")
        found.extend(map(_family, keys.list_families(source)))
    found.append("## Known, and not read\n\n")
    found.append(table(("where", "what it has", "why not"), keys.UNREAD_SOURCES))
    return "".join(found).rstrip("\n") + "\n"


def _signs() -> str:
    rows = ((f"`{sign.cloud}`", f"`/{sign.file}`", f"`{sign.text}`", sign.citation) for sign in CLOUD_SIGNATURES)
    return table(("source", "file", "begins with", "says"), rows)


def _family(family: Sequence[keys.Key]) -> str:
    """The keys of one tree of switches, and what they have in common."""
    first = family[0]
    rows = ((f"`{key.name}`", _level(key), f"`{key.example}`") for key in family)
    return (
        f"**{first.family}**: set by {first.set_by}; needs {first.needs}. {first.confidence.capitalize()}: "
        f"{first.citation}.\n\n{table(('key', 'level', 'example'), rows)}"
    )


def _level(key: keys.Key) -> str:
    level = f"`{key.level}`" if key.level in LEVELS else key.level or "none"
    return f"{level}; {key.note}" if key.note else level


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _purpose(name: str) -> str:
    """What a source's module says of itself, in its first sentence."""
    path = import_module(f"launcher.locality.sources.{name}").__file__
    text = ast.get_docstring(ast.parse(Path(str(path)).read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


PAGES = {"worker-variables.md": workers, "devices.md": devices, "locality.md": locality}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(__file__).parent / "reference" / name).write_text(page())
