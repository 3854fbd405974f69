"""The help of `meshrun-ray`: its own options, and where to find those of meshrun."""

from __future__ import annotations

from click import HelpFormatter

from launcher.extensions.ray.options import OPTIONS

_USAGE = "[options] SCRIPT [arguments of the script]"
_INTRO = (
    "Runs SCRIPT in workers on the nodes of a Ray cluster, one agent of meshrun on each. It is the entrypoint of a Ray "
    "job, or runs on a node of the cluster. --nnodes MIN:MAX sets the number of nodes; default: all that have the "
    "devices. It takes all options of meshrun (see meshrun -h), and these:"
)
_EXAMPLE = """\
  ray job submit --submission-id exp-41 --working-dir . -- \\
    meshrun-ray --nnodes 4:8 --nproc-per-node 8 --max-restarts 9 train.py"""


def render() -> str:
    formatter = HelpFormatter(width=80)
    formatter.write_usage("meshrun-ray", _USAGE)
    formatter.write_paragraph()
    formatter.write_text(_INTRO)
    formatter.write_paragraph()
    with formatter.indentation():
        rows = []
        for option in OPTIONS:
            default = f" [default: {option.default}]" if option.default else ""
            rows.append((f"{option.flag} {option.metavar}", f"{option.help}{default}"))
        formatter.write_dl(rows, col_max=34)
    formatter.write_paragraph()
    formatter.write(f"{_EXAMPLE}\n")
    return formatter.getvalue().strip("\n")
