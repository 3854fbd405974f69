"""Transcripts: a script of what happens to a cluster, and the record of what it did.

    # Why this transcript exists.
    world 2:3              the possible worlds: MIN:MAX nodes, or MIN:MAX/GROUP
    set max_restarts=1     a setting, before the first start
    command other          what agents that start from here on are told to run
    start a b              agents begin; crash a, leave a, pause a 7, cut a 5, hang a 60; deafen a: its watches end
    run 3                  let three seconds pass
    fail b 3               a worker on b exits with 3; `fail b 3 echo`: it looks like the loss of a peer
    succeed a b            all workers there exit with success
    remove spec            somebody deletes that key of the job; also current, or everything
    answer lost: seal round 1     the next request of this purpose is applied, but its answer is lost;
                           also "request lost", "request late" and "request refused"
    ----
        0.000  a starts
        ...

`run(text)` returns the text again with the record made anew, so that a test compares the two.
"""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random
from typing import Any

from rendezvous.settings import Settings
from rendezvous.testing.cluster import PREFIX, Cluster, Network, Shape

SEPARATOR = "----"
_FATES = {
    "answer lost": "unanswered",
    "request lost": "lost",
    "request late": "late",
    "request refused": "refused",
}


def run(text: str) -> str:
    """Play the script above the separator; the same text with the record of this run below it."""
    script = text.partition(f"\n{SEPARATOR}\n")[0].rstrip("\n")
    player = _Player()
    for number, line in enumerate(script.splitlines(), start=1):
        words = line.split("#")[0].split()
        if words:
            try:
                player.play(words, line.split("#")[0].strip())
            except (ValueError, KeyError, IndexError) as error:
                raise ValueError(f"line {number}: {line!r}: {error}") from error
    return "\n".join([script, SEPARATOR, *player.record]) + "\n"


class _Player:
    def __init__(self) -> None:
        self.record: list[str] = []
        self._shape = Shape()
        self._settings = Settings(join_grace_s=1.0)
        self._made: Cluster | None = None

    @property
    def _cluster(self) -> Cluster:
        if self._made is None:
            self._made = Cluster(
                random=Random(1),
                settings=self._settings,
                shape=self._shape,
                network=Network(delay_s=(0.001, 0.001), late_s=(3.0, 3.0)),
                trace=self.record.append,
            )
            self._made.stop_s = 0.05
        return self._made

    def play(self, words: list[str], line: str) -> None:
        fate, colon, why = line.partition(": ")
        if colon and fate in _FATES:
            self._cluster.fates[why] = _FATES[fate]
            return
        match words:
            case ["world", world]:
                span, _, group = world.partition("/")
                low, _, high = span.partition(":")
                self._shape = Shape(nodes_min=int(low), nodes_max=int(high or low), group=int(group or 1))
            case ["set", *assignments]:
                self._set(assignments)
            case ["remove", what]:
                self._remove(what)
            case ["run", seconds]:
                self._cluster.run(self._cluster.now + float(seconds))
            case ["start", *names]:
                for name in names:
                    (self._cluster.nodes.get(name) or self._cluster.add(name)).start()
            case ["fail", name, code, *echo]:
                self._cluster.nodes[name].fail(int(code), is_peer_loss=echo == ["echo"])
            case ["pause" | "cut" | "hang" as what, name, seconds]:
                self._strike(what, name, float(seconds))
            case ["command", command]:
                self._cluster.command = command
            case ["crash" | "leave" | "succeed" | "deafen" as what, *names]:
                for name in names:
                    getattr(self._cluster.nodes[name], what)()
            case _:
                raise ValueError("no such command")

    def _remove(self, what: str) -> None:
        for item in self._cluster.store.get(f"/{PREFIX}/", prefix=True).items:
            if what in ("everything", item.key.rpartition("/")[2]):
                self._cluster.store.delete(item.key)
        self._cluster.deliver()

    def _strike(self, what: str, name: str, seconds: float) -> None:
        node = self._cluster.nodes[name]
        if what == "hang":
            node.hangs_until = self._cluster.now + seconds
        else:
            getattr(node, what)(seconds)

    def _set(self, assignments: list[str]) -> None:
        if self._made is not None:
            raise ValueError("settings come before the first start")
        kinds = {item.name: type(getattr(self._settings, item.name)) for item in fields(Settings)}
        for assignment in assignments:
            name, _, text = assignment.partition("=")
            kind = kinds[name]
            value: Any = text if kind is str else text == "yes" if kind is bool else kind(float(text))
            self._settings = replace(self._settings, **{name: value})
