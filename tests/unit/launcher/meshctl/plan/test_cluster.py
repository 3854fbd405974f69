"""Clusters of files and of generators: what they may say, what becomes of it, and what is refused in which words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.meshctl.plan import cluster as clusters
from launcher.meshctl.plan.cluster import parse_cluster
from launcher.meshctl.plan.generate import generate, is_form
from launcher.model.errors import UsageError
from launcher.placement.limits import Plan

NODE: dict[str, Any] = {"id": "a", "devices": 8}


def read(tmp_path: Path, text: str | bytes, name: str = "c.json") -> Any:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return clusters.read_file(str(tmp_path / name))


def test_json_and_yaml_with_the_same_keys_are_the_same_cluster(tmp_path: Path) -> None:
    nodes = [{"id": "h0", "path": ["p0", None], "devices": 8, "addr": "10.0.0.1", "index": 0}]
    values = {"levels": ["pod", "leaf"], "leave_cost": {"pod": 4, "host": 0.5}, "nodes": nodes}
    text = """
levels: [pod, leaf]
leave_cost: {pod: 4, host: 0.5}
nodes:
  - {id: h0, path: [p0, null], devices: 8, addr: 10.0.0.1, index: 0}
"""
    assert read(tmp_path, json.dumps(values)) == read(tmp_path, text, "c.yaml") == values
    found = parse_cluster(values, "c")
    assert found.levels == ("pod", "leaf")
    assert found.nodes[0].path == ("p0", None)
    assert (found.nodes[0].slot_count, found.nodes[0].address, found.nodes[0].index) == (8, "10.0.0.1", 0)
    assert found.options == {"level-costs": "pod=4,host=0.5"}


def test_every_key_becomes_the_text_of_its_flag() -> None:
    found = parse_cluster(
        {
            "nodes": [NODE],
            "mesh": [["pp", 4], ["dp", "*"], ["tp", 8]],
            "comms": [{"axes": ["dp", "tp"], "kind": "ring", "weight": 10}, {"axes": ["pp"], "weight": 2.5}],
            "unit": 8,
            "dp_min": 1,
            "dp_max": 64,
            "whole": {"level": "slice", "hosts": 4},
            "within": {"tp": "host"},
            "nodes_min": 2,
            "nodes_max": 9,
            "rates": {"leaf": "400Gbit", "leaf:p0/l1": "100Gbit"},
        },
        "c",
    )
    assert found.options == {
        "mesh": "pp=4,dp=*,tp=8", "traffic": "dp+tp=10:ring,pp=2.5", "unit": "8", "whole": "slice:4",
        "within": "tp=host", "nnodes": "2:9", "elastic": "1:64", "rates": "leaf=400Gbit,leaf:p0/l1=100Gbit",
    }  # fmt: skip


def test_levels_and_a_plan_before_are_read_from_the_file_and_a_misspelt_key_gets_a_question() -> None:
    values = {"nodes": [{**NODE, "path": ["x", "y"]}, {"id": "b", "devices": 4}]}
    assert parse_cluster(values, "c").levels == ("level1", "level2")
    assert [(node.path, node.order) for node in parse_cluster(values, "c").nodes] == [
        (("x", "y"), 0),
        ((None, None), 1),
    ]
    assert parse_cluster(values, "c", ["pod", "leaf"]).levels == ("pod", "leaf")
    found = parse_cluster({"nodes": [NODE], "previous": {"dims": [2, 1], "plan": {"a": [0], "gone": [1]}}}, "c")
    assert found.previous == Plan(shape=(2, 1), ranks={"a": (0,), "gone": (1,)}, spares=(), moved=0, reasons=())
    with pytest.raises(UsageError) as caught:
        parse_cluster({"nodes": [NODE], "leave_costs": {}}, "c")
    assert caught.value.hint == "did you mean 'leave_cost'?"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "c cannot be []"),
        ({}, "c has no key 'nodes'"),
        ({"nodes": []}, "c: nodes cannot be []"),
        ({"nodes": [NODE], "mash": 1}, "c: unknown key 'mash'"),
        ({"nodes": [{**NODE, "device": 1}]}, "c: nodes[0]: unknown key 'device'"),
        ({"nodes": ["a"]}, "c: nodes[0] cannot be 'a'"),
        ({"nodes": [NODE, {"devices": 8}]}, "c: nodes[1] has no key 'id'"),
        ({"nodes": [{**NODE, "id": "a\x1b[2J"}]}, "c: nodes[0].id cannot be 'a\\x1b[2J'"),
        ({"nodes": [NODE, {**NODE, "id": "b"}, NODE]}, "c: nodes[0] and nodes[2] have the same id a"),
        ({"nodes": [{"id": "a"}]}, "c: nodes[0] has no key 'devices'"),
        ({"nodes": [{**NODE, "devices": -8}]}, "c: nodes[0].devices cannot be -8"),
        ({"nodes": [{**NODE, "devices": 0}]}, "c: nodes[0].devices cannot be 0"),
        ({"nodes": [{**NODE, "devices": True}]}, "c: nodes[0].devices cannot be true"),
        ({"nodes": [{**NODE, "devices": 10**9}]}, "c: nodes[0].devices cannot be 1000000000"),
        ({"nodes": [{**NODE, "index": -1}]}, "c: nodes[0].index cannot be -1"),
        ({"nodes": [{**NODE, "addr": 10}]}, "c: nodes[0].addr cannot be 10"),
        ({"nodes": [{**NODE, "path": "p0/l0"}]}, "c: nodes[0].path cannot be 'p0/l0'"),
        ({"nodes": [{**NODE, "path": [3]}]}, "c: nodes[0].path[0] cannot be 3"),
        ({"nodes": [{**NODE, "path": ["x", "y"]}, {"id": "b", "devices": 8, "path": ["x"]}]},
         "c: the path of node b has 1 entry, the levels are 2 (level1, level2)"),
        ({"levels": "leaf", "nodes": [NODE]}, "c: levels cannot be 'leaf'"),
        ({"levels": ["leaf", "leaf"], "nodes": [NODE]}, "c: levels contains 'leaf' twice"),
        ({"levels": ["host"], "nodes": [NODE]}, "c: levels cannot contain 'host', the node itself"),
        ({"levels": ["a=b"], "nodes": [NODE]}, "c: levels[0] cannot be 'a=b'"),
        ({"nodes": [NODE], "mesh": []}, "c: mesh cannot be []"),
        ({"nodes": [NODE], "comms": [{"axes": "tp", "weight": 1}]}, "c: comms[0].axes cannot be 'tp'"),
        ({"nodes": [NODE], "comms": [{"axes": ["tp"]}]}, "c: comms[0] has no key 'weight'"),
        ({"nodes": [NODE], "leave_cost": [1]}, "c: leave_cost cannot be [1]"),
        ({"nodes": [NODE], "rates": "40Gbit"}, "c: rates cannot be '40Gbit'"),
        ({"nodes": [NODE], "whole": "slice"}, "c: whole cannot be 'slice'"),
        ({"nodes": [NODE], "unit": True}, "c: unit cannot be true"),
        ({"nodes": [NODE], "previous": [0]}, "c: previous is not a plan with 'dims' and 'plan'"),
        ({"nodes": [NODE], "previous": {"dims": [0], "plan": {}}}, "c: previous is not a plan with"),
        ({"nodes": [NODE], "previous": {"dims": [1] * 65, "plan": {}}}, "c: previous is not a plan with"),
        ({"nodes": [NODE], "previous": {"dims": [16**9999], "plan": {}}}, "c: previous is not a plan with"),
        ({"nodes": [{**NODE, "devices": 16**9999}]}, "c: nodes[0].devices cannot be a number with thousands of digits"),
        ({"nodes": [NODE], "previous": {"dims": [2], "plan": {"a": [0, 2]}}},
         "c: previous: node a has rank 2, but ranks go from 0 to 1"),
        ({"nodes": [NODE], "previous": {"dims": [2], "plan": {"a": [0], "b": [0]}}}, "c: previous: rank 0 is on a and"),
        ({"nodes": [NODE], "previous": {"dims": [2], "plan": {"a": [0]}}}, "c: previous: rank 1 of 2 is on no node"),
        ({"nodes": [NODE], "previous": {"dims": [10**5] * 9, "plan": {}}}, "c: previous has 1000000000000000000000000"),
    ],
)  # fmt: skip
def test_a_file_that_makes_no_sense_is_told_so_in_a_sentence(values: object, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster(values, "c")
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("", "c.json", " is empty"),
        ('{"nodes": [\n  {"id": }]}', "c.json", " is not valid JSON: line 2, column 10: expecting value"),
        ('{"a": 1, "a": 2}', "c.json", ": duplicate key 'a'"),
        ("[" * 100_000, "c.json", " is nested too deeply"),
        ("[" * 100_000, "c.yaml", " is nested too deeply"),
        ("[%s]" % ("9" * 5000), "c.json", " has a number with thousands of digits"),
        (b'{"a": "\xff"}', "c.json", " is not UTF-8: line 1, column 8: byte 0xff"),
        ("a: 1\na: 2", "c.yaml", " is not valid YAML: duplicate key 'a' in \"<unicode string>\", line 2, column 1"),
        ("1: a", "c.yaml", " is not valid YAML: a key must be text"),
        ("a: !!int ''", "c.yaml", " has a value that cannot be read as YAML"),
        ("a: 2001-99-99", "c.yaml", " has a value that cannot be read as YAML: month must be in 1..12"),
    ],
)
def test_what_is_neither_json_nor_yaml_has_its_line(
    text: str | bytes, name: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, name)
    assert str(caught.value).removeprefix(str(tmp_path / name)).startswith(sentence)


def test_an_alias_stands_for_what_it_names_and_without_an_ending_a_brace_means_json(tmp_path: Path) -> None:
    found = read(tmp_path, "nodes:\n- {id: a, devices: &d 8, path: &p [x]}\n- {id: b, devices: *d, path: *p}", "c.yaml")
    assert found["nodes"][1] == {"id": "b", "devices": 8, "path": ["x"]}
    assert read(tmp_path, "# only a comment", "c.yaml") is None
    assert read(tmp_path, ' {"a": [1]}', "cluster") == read(tmp_path, "a: [1]", "cluster") == {"a": [1]}
    with pytest.raises(UsageError, match="is not valid JSON: line 1, column 2"):
        read(tmp_path, "{a: 1}", "cluster")


def test_yaml_without_pyyaml_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="YAML needs PyYAML") as caught:
        read(tmp_path, "a: 1", "c.yaml")
    assert caught.value.hint == "install it: pip install pyyaml, or write the file as JSON"
    assert read(tmp_path, '{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(("name", "limit"), [("c.json", clusters.JSON_BYTES_MAX), ("c.yaml", clusters.YAML_BYTES_MAX)])
def test_a_file_of_a_million_nodes_is_refused_before_it_is_taken_apart(name: str, limit: int, tmp_path: Path) -> None:
    with open(tmp_path / name, "wb") as file:
        file.write(b'{"nodes": [')
        file.truncate(limit + 1)
    with pytest.raises(UsageError, match=f"is larger than the limit of {limit >> 20} MiB"):
        clusters.read_file(str(tmp_path / name))
    with pytest.raises(UsageError, match=r"/dev/zero is larger than the limit of 16 MiB"):
        clusters.read_file("/dev/zero")


def test_as_many_nodes_and_devices_as_are_planned_for_and_no_more() -> None:
    many = [{"id": str(at), "devices": 1} for at in range(clusters.NODES_MAX + 1)]
    assert len(parse_cluster({"nodes": many[:-1]}, "c").nodes) == 65536
    with pytest.raises(UsageError, match="c has 65537 nodes; the limit is 65536"):
        parse_cluster({"nodes": many}, "c")
    wide = [{"id": str(at), "devices": 1024} for at in range(1025)]
    with pytest.raises(UsageError, match="c has 1049600 devices; the limit is 1048576"):
        parse_cluster({"nodes": wide}, "c")


@pytest.mark.parametrize(
    ("text", "levels", "count", "devices", "last"),
    [
        ("dgx:4x8x8", ("leaf",), 32, 8, ("l3",)),
        ("dgx:2x4x8x8", ("pod", "leaf"), 64, 8, ("p1", "l3")),
        ("dgx:3x8", (), 3, 8, ()),
        ("nvl72:8", ("nvl",), 144, 4, ("n7",)),
        ("nvl72:2x3", ("pod", "nvl"), 108, 4, ("p1", "n2")),
        ("tpu:v5e-16:6", ("slice",), 24, 4, ("s5",)),
        ("tpu:v6e-256:1", ("slice",), 64, 4, ("s0",)),
    ],
)
def test_a_generator_obeys(text: str, levels: tuple[str, ...], count: int, devices: int, last: tuple[str, ...]) -> None:
    made = generate(text)
    assert is_form(text)
    assert made.levels == levels
    by_id = {node.id: node for node in made.nodes}
    assert set(by_id) == {f"h{at}" for at in range(count)}
    assert {node.slot_count for node in made.nodes} == {devices}
    assert by_id[f"h{count - 1}"].path == last
    assert [node.order for node in made.nodes] == list(range(count))


def test_generated_nodes_are_shuffled_and_generated_slices_are_whole_and_in_order() -> None:
    nodes = generate("dgx:4x8x8").nodes
    along_the_tree = sorted(nodes, key=lambda node: int(node.id[1:]))
    assert [node.id for node in nodes][:4] == ["h29", "h18", "h6", "h2"]  # the same on every machine
    assert along_the_tree[9].address == "10.0.0.10"
    assert sorted(nodes, key=lambda node: node.address)[1].id == "h9"
    assert generate("dgx:1x300x8").nodes != generate("dgx:300x1x8").nodes
    assert len({node.address for node in generate("dgx:8x32x16x8").nodes}) == 4096
    made = generate("tpu:v5e-32:2")
    assert made.options == {"whole": "slice:8"}
    assert sorted((node.path, node.index) for node in made.nodes)[7] == (("s0",), 7)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dgx:8", "cluster 'dgx:8' is not of the form dgx:[[[ZONESx]PODSx]LEAVESx]NODESxGPUS"),
        ("dgx:4x0x8", "cluster 'dgx:4x0x8' has a number outside 1"),
        ("dgx:1000x1000x8", "dgx:1000x1000x8 has 1000000 nodes; the limit is 65536"),
        ("dgx:4x4096", "dgx:4x4096: 4096 devices per node; the limit is 1024"),
        ("nvl72:", "cluster 'nvl72:' is not of the form nvl72:[PODSx]RACKS"),
        ("tpu:v5e-17:2", "cluster 'tpu:v5e-17:2': 'v5e-17': 17 chips make no v5e slice"),
        ("tpu:v5e-16", "cluster 'tpu:v5e-16' is not of the form tpu:TYPE:SLICES"),
        ("tpu:v6e-8:2", "cluster 'tpu:v6e-8:2': v6e-8: 1 host of 8 chips, 2x4"),
    ],
)
def test_a_generator_refuses_what_it_cannot_make(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        generate(text)
    assert str(caught.value).startswith(sentence)
