"""Values of options, good and bad. What is not about a whole run needs none: parsers are asked, in one process."""

from __future__ import annotations

from launcher.config.options import table

NUMBERS = ("0", "1", "7", "-1", "1.5", "x", "", " 2 ", "1e3", "٣")
STREAMS = (
    "0", "1", "2", "3", "4", "11", "-1", "", "x", "0:1", "0:1,1:2", "0:3,1:0,2:1,3:2", "0:1,", ",0:1", "0:1,1",
    "0:4", "0:", ":1", "0:1:2", "10:1", "a:1", "0:1 ,1:2", "0:1, 1:2", "0:1,0:2",
)  # fmt: skip
VALUES = {
    "nnodes": ("1", "1:1", "1:2", "2:1", "0", "0:1", "-1", "1:", ":1", "1:2:3", "x", "", "1,2", " 1 : 2 "),
    "nproc-per-node": ("1", "2", "0", "-1", "cpu", "auto", "1.5", ""),
    "max-restarts": NUMBERS,
    "monitor-interval": ("0.1", "5", "x", "-1", "nan"),
    "start-method": ("spawn", "fork", "forkserver", "thread", ""),
    "node-rank": ("0", "x", "1.5"),
    "master-port": ("29500", "x", "70000"),
    "redirects": STREAMS,
    "tee": STREAMS,
    "local-ranks-filter": ("0", "0,1", "0,x", "x", "0,", ",", " 0, 1", "-1"),
    "rdzv-conf": ("", "timeout=5", "timeout=5,join_timeout=7", "timeout", "=5", "timeout=", "timeout=5,", "a=b=c"),
    "numa-binding": ("node", "socket", "exclusive", "core-complex", "x"),
    "signals-to-handle": ("SIGTERM", "SIGTERM,SIGUSR1", "SIGNOPE", "TERM", "15", "SIGKILL"),
    "shutdown-timeout": ("0", "30", "-1", "1.5", "x"),
    "role": ("default", "a b", "é"),
    "duplicate-stdout-filters": ("a", "a,b", "a,,b", ","),
    "duplicate-stderr-filters": ("a", "a,b", "a,,b", ","),
    "event-log-handler": ("null", "console"),
    "standalone": ("0", "1", "2", "x", "true"),
    "module": ("0", "1", "x"),
    "virtual-local-rank": ("0", "1", "x"),
}
# Trials that are one row of the list.
_EMPTY = "an empty --nnodes, --nproc-per-node, --redirects or --tee"
_RANK = "a local rank with several digits, as in --redirects 10:1"
SAME = {
    ("nnodes", ""): _EMPTY,
    ("nproc-per-node", ""): _EMPTY,
    ("redirects", ""): _EMPTY,
    ("tee", ""): _EMPTY,
    ("start-method", ""): _EMPTY,
    ("redirects", "10:1"): _RANK,
    ("tee", "10:1"): _RANK,
    ("nproc-per-node", "0"): "--nproc-per-node 0 or a negative number",
    ("nproc-per-node", "-1"): "--nproc-per-node 0 or a negative number",
    ("monitor-interval", "-1"): "a --monitor-interval that is negative or NaN",
    ("monitor-interval", "nan"): "a --monitor-interval that is negative or NaN",
}
TRIALS = [(name, value) for name, values in VALUES.items() for value in values]


def ways(name: str, value: str) -> list[tuple[str, list[str], dict[str, str]]]:
    """How the value can be given: the sentence of the list of differences, words, variables; the flag first."""
    option = table.BY_NAME[name]
    found: list[tuple[str, list[str], dict[str, str]]] = []
    if option.takes_value:
        found.append((SAME.get((name, value), f"--{name} {value}"), [f"--{name}={value}"], {}))
    variable = f"PET_{name.replace('-', '_').upper()}"
    if variable in option.variables:
        found.append((f"{variable}={value}", [], {variable: value}))
    return found


SENTENCES = {sentence for name, value in TRIALS for sentence, _, _ in ways(name, value)}
