"""What a user says of a node's place, what sources find, and how little of it may go wrong."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher.agent import command
from launcher.config.config import LocalityOptions
from launcher.locality import gather as gathering
from launcher.locality.contract import Hints, Level
from launcher.locality.explicit import check_file, find_in_file, read_explicit
from launcher.locality.gather import Locality, query_sources, resolve_locality
from launcher.locality.interconnects import NvlinkSource, SliceSource
from launcher.model.errors import UsageError
from launcher.model.node import Device

NAMES = ("node-17", "node-17.cluster.local", "10.0.4.9")


def asked(*words: str, **environ: str) -> LocalityOptions:
    network = ("--rdzv-backend", "etcd", "--rdzv-endpoint", "h:1", "--rdzv-id", "x", "--nnodes", "2")
    return command.parse([*network, *words, "t.py"], environ).locality


def place(found: Locality) -> str:
    return ",".join(f"{level}={domain}" for level, domain in found.path)


class Says:
    """A source that answers with what it was given, an error, or not before the test is over."""

    def __init__(self, name: str, answer: Any, until: threading.Event | None = None) -> None:
        self.name, self._answer, self._until = name, answer, until

    def is_likely(self, environ: Mapping[str, str]) -> bool:
        return self._answer is not None

    def look(self, environ: Mapping[str, str], limit_s: float) -> Hints:
        if self._until is not None:
            self._until.wait(60)
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer  # type: ignore[no-any-return]


def hints(**levels: str) -> Hints:
    return Hints(tuple(Level(name, domain, "a key") for name, domain in levels.items()), "asked")


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> dict[str, Says]:
    """The sources that are built in, by name; without an answer one is not likely."""
    found: dict[str, Says] = {}

    def built_in(name: str, devices: object) -> Says:
        return found.get(name, Says(name, None))

    monkeypatch.setattr(gathering, "make_built_in", built_in)
    return found


# The user's word


def test_what_the_option_says_counts_before_a_source(tmp_path: Path, sources: dict[str, Says]) -> None:
    (tmp_path / "places").write_text("node-17 spine=f,leaf=f")
    sources["slurm"] = Says("slurm", hints(zone="c", leaf="c"))
    found = resolve_locality(asked("--locality", f"@{tmp_path}/places"), {}, names=NAMES)
    assert place(found) == "zone=c,spine=f,leaf=f"
    assert [one.source for one in found.results] == ["--locality", "slurm"]
    assert found.remarks == (
        f"leaf is f by --locality ({tmp_path}/places, node-17), which counts, and c by slurm (a key)",
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [(" ", "'' is not LEVEL=DOMAIN"), ("@", "there is no file name after @"), ("@a\n", "it must contain")],
)
def test_an_option_that_names_no_place_and_no_file_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^--locality .*: {sentence}"):
        asked("--locality", text)


FILE = """\
# the east wing
other       leaf=l9

node-17     zone=a,leaf=l3   # by the door
10.0.4.10   leaf=l4
"""


@pytest.mark.parametrize(
    ("text", "path", "key"),
    [
        (FILE, (("zone", "a"), ("leaf", "l3")), "node-17"),
        ("10.0.4.9 leaf=l3", (("leaf", "l3"),), "10.0.4.9"),
        ("node-17.cluster.local leaf=l3", (("leaf", "l3"),), "node-17.cluster.local"),
        ("node-17.elsewhere leaf=l3", (("leaf", "l3"),), "node-17.elsewhere"),
        ("* zone=a\nnode-17 leaf=l3", (("leaf", "l3"),), "node-17"),
        ("* zone=a\nother leaf=l3", (("zone", "a"),), "*"),
        ("*\r\n", (), "*"),
        ("node-17   # nothing is known of it", (), "node-17"),
        ("node-17 leaf=l3\n10.0.4.9 leaf=l3\nbroken line", (("leaf", "l3"),), "node-17"),
    ],
    ids=range(9),
)
def test_a_node_finds_itself_in_a_file(tmp_path: Path, text: str, path: object, key: str) -> None:
    (tmp_path / "places").write_text(text)
    assert find_in_file(str(tmp_path / "places"), "--locality", NAMES) == (path, key)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "--locality @F: the file is empty"),
        (b"# places\n",
         "--locality @F has no line for this node, node-17 or node-17.cluster.local or 10.0.4.9"),
        (b"other leaf=a\n", "--locality @F has no line for this node, node-17 or node-17.cluster.local or 10.0.4.9"),
        (b"node-17 leaf", "--locality @F, line 1: 'leaf' is not LEVEL=DOMAIN"),
        (b"\n\nnode-17 leaf=a,leaf=b", "--locality @F, line 3 sets the level leaf twice, to 'a' and 'b'"),
        (b"node-17 leaf=a\n10.0.4.9 leaf=b",
         "--locality @F has two lines for this node that differ: node-17 in line 1, 10.0.4.9 in line 2"),
        (b"a leaf=a\n\xff\xfe\n", "--locality @F, line 2: the text is not in UTF-8"),
        (b"node-17 leaf=a\0", "--locality @F, line 1: a byte has the value 0, so the file is not text"),
    ],
)  # fmt: skip
def test_a_file_that_is_wrong_for_this_node_is_one_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    file = tmp_path / "places"
    file.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        find_in_file(str(file), "--locality", NAMES)
    assert str(caught.value).replace(str(file), "F") == sentence
    assert caught.value.hint or "twice" in sentence


def test_a_host_that_knows_its_domain_is_not_taken_for_another_of_its_name(tmp_path: Path) -> None:
    (tmp_path / "places").write_text("h1.west leaf=w\nh1.east leaf=e\n")
    found = find_in_file(str(tmp_path / "places"), "--locality", ("h1.east", "10.0.0.1"))
    assert found == ((("leaf", "e"),), "h1.east")
    with pytest.raises(UsageError, match="two lines for this node that differ"):
        find_in_file(str(tmp_path / "places"), "--locality", ("h1", "10.0.0.1"))


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^--locality @.*/none cannot be read: No such file or directory$"):
        read_explicit(asked("--locality", f"@{tmp_path}/none"), NAMES)
    with pytest.raises(UsageError, match=r"^LAUNCHER_LOCALITY=@.* cannot be read: Is a directory$"):
        read_explicit(asked(LAUNCHER_LOCALITY=f"@{tmp_path}"), NAMES)
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        check_file(asked(LAUNCHER_LOCALITY=f"@{tmp_path}"))
    check_file(asked("--locality", "leaf=l"))


def test_a_pipe_is_read_once() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"node-17 leaf=l3\n")
    os.close(writing)
    try:
        for _ in range(2):  # before the store is met, and then with this node's address
            assert find_in_file(f"/dev/fd/{reading}", "--locality", NAMES)[0] == (("leaf", "l3"),)
    finally:
        os.close(reading)


# Sources


def test_likely_sources_are_asked_in_one_order_of_trust_and_named_ones_in_their_own(sources: dict[str, Says]) -> None:
    sources.update(
        aws=Says("aws", hints(zone="a")),
        slurm=Says("slurm", hints(spine="s", leaf="l")),
        kubernetes=Says("kubernetes", hints(leaf="k")),
    )
    found = resolve_locality(asked(), {}, names=NAMES)
    assert place(found) == "zone=a,spine=s,leaf=k"
    assert [one.source for one in found.results] == ["kubernetes", "slurm", "aws"]
    assert found.remarks == ("leaf is k by kubernetes (a key), which counts, and l by slurm (a key)",)
    sources.update(
        aws=Says("aws", hints(leaf="a")), slurm=Says("slurm", hints(leaf="s")), gce=Says("gce", hints(leaf="g"))
    )
    found = resolve_locality(asked("--locality-sources", "gce,slurm"), {}, names=NAMES)
    assert (place(found), [one.source for one in found.results]) == ("leaf=g", ["gce", "slurm"])
    assert resolve_locality(asked("--locality-sources", "none"), {}, names=NAMES) == Locality((), (), ())


def test_a_source_that_is_late_or_fails_is_left_behind_and_its_thread_too(sources: dict[str, Says]) -> None:
    over = threading.Event()
    sources.update(
        kubernetes=Says("kubernetes", hints(leaf="never"), over),
        slurm=Says("slurm", ValueError("odd\x1b[2J")),
        oci=Says("oci", "nonsense"),
        gce=Says("gce", hints(zone="a")),
    )
    try:
        found = resolve_locality(asked(), {}, names=NAMES, limit_s=0.2)
    finally:
        over.set()
    assert place(found) == "zone=a"
    reasons = {one.source: one.reason for one in found.results}
    assert reasons["kubernetes"] == "no answer within 0.2 s"
    assert reasons["slurm"] == "'failed with ValueError: odd\\x1b[2J'"
    assert reasons["oci"].startswith("failed with TypeError: ")
    over = threading.Event()
    try:
        assert query_sources([Says("slow", hints(), over)], {}, 0.0)[0].reason == "no answer within 0 s"
        assert all(thread.daemon for thread in threading.enumerate() if thread.name.startswith("locality"))
    finally:
        over.set()


def test_that_nothing_is_known_is_said_with_what_was_asked(sources: dict[str, Says]) -> None:
    assert resolve_locality(asked(), {}, names=NAMES).remarks == (
        "this node's place in the network is unknown: no sign of Kubernetes, Slurm or a cloud; set it with --locality",
    )
    sources["gce"] = Says("gce", Hints((), "the metadata server does not answer"))
    assert resolve_locality(asked(), {}, names=NAMES).remarks == (
        "this node's place in the network is unknown: gce: the metadata server does not answer",
    )
    sources["aws"] = Says("aws", Hints(hints(region="r", zone="z").levels, "it knows no switches"))
    assert resolve_locality(asked("--locality", "zone=z"), {}, names=NAMES).remarks == (
        "this node's switch is unknown: gce: the metadata server does not answer; aws: it knows no switches",
    )
    assert resolve_locality(asked("--locality", "leaf=l"), {}, names=NAMES).remarks == ()
    assert resolve_locality(asked("--locality", "zone=z", "--locality-sources", "none"), {}, names=NAMES).remarks == ()


@pytest.mark.parametrize("text", ["aws,", "aws,aws", "none,aws", "auto,aws", ","])
def test_a_list_of_sources_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--locality-sources "):
        asked("--locality-sources", text)


def test_a_place_on_one_machine_has_no_effect_and_an_unknown_source_is_refused() -> None:
    alone = command.parse(["--locality", "leaf=l", "t.py"], {"LAUNCHER_LOCALITY_SOURCES": "aws"})
    assert alone.notes == (
        "--locality leaf=l has no effect on one machine",
        "LAUNCHER_LOCALITY_SOURCES=aws has no effect on one machine",
    )
    with pytest.raises(UsageError, match="LAUNCHER_LOCALITY=leaf: 'leaf' is not LEVEL=DOMAIN"):
        command.parse(["t.py"], {"LAUNCHER_LOCALITY": "leaf"})
    with pytest.raises(UsageError, match="slrum") as caught:
        resolve_locality(asked("--locality-sources", "slrum"), {}, names=NAMES)
    assert caught.value.hint == "did you mean slurm?"


# What the machine itself says


def gpus(*domains: str) -> list[Device]:
    return [Device(kind="nvidia", index=at, id=f"G{at}", visible="", domain=one) for at, one in enumerate(domains)]


@pytest.mark.parametrize(
    ("domains", "levels", "reason"),
    [
        (("u.1", "u.1"), [("nvl", "u.1")], "all 2 GPUs are in one"),
        (("u.1", "u.2"), [], "the 2 GPUs are in 2 NVLink domains"),
        (("u.1", ""), [], "1 of 2 GPUs are on no NVLink fabric"),
        (("", ""), [], "no GPU here is on an NVLink fabric of several nodes"),
    ],
)
def test_an_nvlink_domain_is_that_of_all_gpus_or_none(domains: tuple[str, ...], levels: object, reason: str) -> None:
    source = NvlinkSource(gpus(*domains))
    found = source.look({}, 1.0)
    assert ([(level.name, level.domain) for level in found.levels], found.reason) == (levels, reason)
    assert source.is_likely({}) == any(domains)


def test_a_host_of_a_tpu_slice_knows_its_slice_and_its_number() -> None:
    environ = {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "t-0,t-1", "TPU_NAME": "t", "TPU_SKIP_MDS_QUERY": "1"}
    tpu = [Device(kind="tpu", index=0, id="c0", visible="0")]
    found = resolve_locality(asked("--locality-sources", "none"), environ, names=NAMES, devices=tpu)
    assert [level.name for level in found.levels] == ["slice"]
    assert found.identity is not None
    assert (found.identity.worker_id, found.identity.host_count) == (1, 2)
    assert not SliceSource(gpus("")).is_likely(environ)
    assert SliceSource().is_likely(environ)
    assert SliceSource(tpu).look({"TPU_SKIP_MDS_QUERY": "1"}, 1.0).levels == ()
