"""Cluster files and generators: what they may say, what becomes of it, and what is refused in which words."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.meshctl.plan import cluster as clusters
from launcher.meshctl.plan import document
from launcher.meshctl.plan.changes import apply_changes
from launcher.meshctl.plan.cluster import ClusterSpec, parse_cluster
from launcher.meshctl.plan.generate import generate, is_form
from launcher.meshctl.plan.moves import Move, list_moves
from launcher.meshctl.plan.output_file import write_file
from launcher.model.errors import UsageError
from launcher.model.mesh import parse
from launcher.placement.limits import Plan

NODE: dict[str, Any] = {"id": "a", "devices": 8}


def read(tmp_path: Path, text: str | bytes, name: str = "c.json") -> Any:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return document.read(str(tmp_path / name))


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
            "move_cost": 0.1,
            "nodes_min": 2,
            "nodes_max": 9,
            "elastic_max": 7,
            "contiguous": False,
        },
        "c",
    )
    assert found.options == {
        "mesh": "pp=4,dp=*,tp=8",
        "traffic": "dp+tp=10:ring,pp=2.5",
        "unit": "8",
        "dp-min": "1",
        "dp-max": "64",
        "whole": "slice:4",
        "within": "tp=host",
        "move-cost": "0.1",
        "nnodes": "2:9",
        "elastic": "1:7",
    }
    assert not found.is_contiguous


def test_levels_nobody_named_are_numbered_and_a_flag_names_them_anew() -> None:
    values = {"nodes": [{**NODE, "path": ["x", "y"]}, {"id": "b", "devices": 4}]}
    assert parse_cluster(values, "c").levels == ("level1", "level2")
    assert [(node.path, node.order) for node in parse_cluster(values, "c").nodes] == [
        (("x", "y"), 0),
        ((None, None), 1),
    ]
    assert parse_cluster(values, "c", ["pod", "leaf"]).levels == ("pod", "leaf")


def test_a_plan_before_is_read_from_the_file() -> None:
    found = parse_cluster({"nodes": [NODE], "previous": {"dims": [2, 1], "plan": {"a": [0], "gone": [1]}}}, "c")
    assert found.previous == Plan(shape=(2, 1), ranks={"a": (0,), "gone": (1,)}, spares=(), moved=0, reasons=())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ([], "c holds an empty list, not keys and values"),
        ({}, "c has no key 'nodes'"),
        ({"nodes": []}, "c: nodes is an empty list, not a list with at least one node"),
        ({"nodes": [NODE], "mash": 1}, "c: unknown key 'mash'"),
        ({"nodes": [{**NODE, "device": 1}]}, "c: node a: unknown key 'device'"),
        ({"nodes": ["a"]}, "c: node number 1 is 'a', not keys and values"),
        ({"nodes": [NODE, {"devices": 8}]}, "c: node number 2 has the id null, which is no name"),
        ({"nodes": [{**NODE, "id": "a\x1b[2J"}]}, "c: node number 1 has the id 'a\\x1b[2J', which is no name"),
        ({"nodes": [NODE, {**NODE, "id": "b"}, NODE]}, "c: the id a stands twice, at nodes 1 and 3"),
        ({"nodes": [{"id": "a"}]}, "c: node a does not say how many devices it has"),
        ({"nodes": [{**NODE, "devices": -8}]}, "c: node a: devices is -8, not a whole number from 1 to 1024"),
        ({"nodes": [{**NODE, "devices": 0}]}, "c: node a: devices is 0, not a whole number from 1 to 1024"),
        ({"nodes": [{**NODE, "devices": 2.5}]}, "c: node a: devices is 2.5, not a whole number from 1 to 1024"),
        ({"nodes": [{**NODE, "devices": True}]}, "c: node a: devices is true, not a whole number from 1 to 1024"),
        ({"nodes": [{**NODE, "devices": "8"}]}, "c: node a: devices is '8', not a whole number from 1 to 1024"),
        ({"nodes": [{**NODE, "devices": 10**9}]}, "c: node a: devices is 1000000000, not a whole number from 1 to"),
        ({"nodes": [{**NODE, "index": -1}]}, "c: node a has the index -1, not a whole number from 0"),
        ({"nodes": [{**NODE, "addr": 10}]}, "c: node a has the addr 10, which is no address"),
        ({"nodes": [{**NODE, "path": "p0/l0"}]}, "c: node a has the path 'p0/l0', not a list of names"),
        ({"nodes": [{**NODE, "path": [3]}]}, "c: node a has 3 in its path, neither a name nor null"),
        ({"nodes": [{**NODE, "path": [[]]}]}, "c: node a has [] in its path, neither a name nor null"),
        (
            {"nodes": [{**NODE, "path": ["x", "y"]}, {"id": "b", "devices": 8, "path": ["x"]}]},
            "c: node b has a path of 1 entry, the levels are 2 (level1, level2)",
        ),
        ({"levels": ["leaf"], "nodes": [{**NODE, "path": []}]}, "c: node a has a path of 0 entries, the levels are 1"),
        ({"levels": "leaf", "nodes": [NODE]}, "c: levels is 'leaf', not a list of names"),
        ({"levels": ["leaf", "leaf"], "nodes": [NODE]}, "c: levels names 'leaf' twice"),
        ({"levels": ["host"], "nodes": [NODE]}, "c: levels names 'host', which stands for the node itself"),
        ({"levels": ["a=b"], "nodes": [NODE]}, "c: level 'a=b' is no name"),
        ({"nodes": [NODE], "contiguous": 1}, "c: contiguous is 1, neither true nor false"),
        ({"nodes": [NODE], "mesh": []}, "c: mesh is an empty list, not a list of axes"),
        ({"nodes": [NODE], "mesh": [["dp"]]}, "c: mesh: ['dp'] is not a name and a size"),
        ({"nodes": [NODE], "comms": {}}, "c: comms is keys and values, not a list"),
        ({"nodes": [NODE], "comms": [{"axes": "tp", "weight": 1}]}, "c: comms: number 1 has the axes 'tp', not a list"),
        ({"nodes": [NODE], "comms": [{"axes": ["tp"]}]}, "c: comms: number 1 has no weight"),
        ({"nodes": [NODE], "comms": [{"axes": ["tp"], "wait": 1}]}, "c: comms: number 1: unknown key 'wait'"),
        ({"nodes": [NODE], "leave_cost": [1]}, "c: leave_cost is a list, not keys and values"),
        ({"nodes": [NODE], "leave_cost": {"host": [1]}}, "c: leave_cost: host is a list, not a number"),
        ({"nodes": [NODE], "whole": "slice"}, "c: whole does not name a level"),
        ({"nodes": [NODE], "unit": True}, "c: unit is true, not a number"),
        ({"nodes": [NODE], "previous": [0]}, "c: previous has no keys 'dims' and 'plan'"),
        ({"nodes": [NODE], "previous": {"dims": [0], "plan": {}}}, "c: previous: dims is [0], not the sizes of"),
        ({"nodes": [NODE], "previous": {"dims": [1] * 65, "plan": {}}}, "c: previous: dims is [1, 1, 1, 1, 1, 1, 1, 1"),
        ({"nodes": [NODE], "previous": {"dims": [16**9999], "plan": {}}}, "c: previous: dims is a number with"),
        ({"nodes": [{**NODE, "devices": 16**9999}]}, "c: node a: devices is a number with thousands of digits"),
        ({"nodes": [NODE], "previous": {"dims": [1], "plan": {"a": 0}}}, "c: previous: plan gives no list of ranks"),
        (
            {"nodes": [NODE], "previous": {"dims": [2], "plan": {"a": [0, 2]}}},
            "c: previous: node a has rank 2, the world has ranks 0 to 1",
        ),
        ({"nodes": [NODE], "previous": {"dims": [2], "plan": {"a": [0], "b": [0]}}}, "c: previous: rank 0 is on a and"),
        ({"nodes": [NODE], "previous": {"dims": [2], "plan": {"a": [0]}}}, "c: previous: rank 1 of 2 is on no node"),
        ({"nodes": [NODE], "previous": {"dims": [10**5] * 9, "plan": {}}}, "c: previous has 1000000000000000000000000"),
    ],
)
def test_a_file_that_makes_no_sense_is_told_so_in_a_sentence(values: object, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster(values, "c")
    assert str(caught.value).startswith(sentence)


def test_a_misspelt_key_gets_a_question() -> None:
    with pytest.raises(UsageError) as caught:
        parse_cluster({"nodes": [NODE], "leave_costs": {}}, "c")
    assert caught.value.hint == "did you mean 'leave_cost'?"


@pytest.mark.parametrize(
    ("text", "name", "sentence"),
    [
        ("", "c.json", " is empty"),
        (" \n", "c.yaml", " is empty"),
        ('{"nodes": [\n  {"id": }]}', "c.json", " is no JSON: line 2, column 10: expecting value"),
        ('{"a": 1}}', "c.json", " is no JSON: line 1, column 9: extra data"),
        ('{"a": 1, "a": 2}', "c.json", ": the key 'a' stands twice in one object"),
        ("[" * 100_000, "c.json", " is nested too deeply"),
        ("[%s]" % ("9" * 5000), "c.json", " holds a number with thousands of digits"),
        (b'{"a": "\xff"}', "c.json", " is no text: line 1, column 8: byte 0xff is no UTF-8"),
        (b"\x00\x01", "c.yaml", " is no YAML: line 1, column 1: control characters are not allowed"),
        ("a: [1, 2\nb: 3", "c.yaml", " is no YAML that can be used: line 2, column "),
        ("a:\n\t- b", "c.yml", " is no YAML that can be used: line 2, column "),
        ("a: 1\na: 2", "c.yaml", " is no YAML that can be used: line 2, column 1: the key 'a' stands twice"),
        ("a: 1\n---\nb: 2", "c.yaml", " is no YAML that can be used: line 2, column 1: a second document begins"),
        ("nodes: &n\n  - {path: *n}", "c.yaml", " is no YAML that can be used: line 2, column 12: *n stands inside"),
        ("a: *b", "c.yaml", " is no YAML that can be used: line 1, column 4: *b names nothing before it"),
        ("1: a", "c.yaml", " is no YAML that can be used: line 1, column 1: a key is no text"),
        ("a: !!python/name:os.system ''", "c.yaml", " is no YAML that can be used: line 1, column 4: could not"),
        ("a: !!int ''", "c.yaml", " is no YAML that can be used: line 1, column 4: '' cannot be read"),
        ("a: !!bool x", "c.yaml", " is no YAML that can be used: line 1, column 4: 'x' cannot be read"),
        ("a: 2001-99-99", "c.yaml", " is no YAML that can be used: line 1, column 4: '2001-99-99' cannot be read"),
    ],
)
def test_what_is_not_json_or_yaml_is_told_with_line_and_column(
    text: str | bytes, name: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text, name)
    assert str(caught.value).removeprefix(str(tmp_path / name)).startswith(sentence)


def test_an_alias_stands_for_what_it_names(tmp_path: Path) -> None:
    found = read(tmp_path, "nodes:\n- {id: a, devices: &d 8, path: &p [x]}\n- {id: b, devices: *d, path: *p}", "c.yaml")
    assert found["nodes"][1] == {"id": "b", "devices": 8, "path": ["x"]}


def test_without_an_ending_a_brace_means_json(tmp_path: Path) -> None:
    assert read(tmp_path, ' {"a": [1]}', "cluster") == read(tmp_path, "a: [1]", "cluster") == {"a": [1]}
    with pytest.raises(UsageError, match="is no JSON: line 1, column 2"):
        read(tmp_path, "{a: 1}", "cluster")


def test_yaml_without_pyyaml_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match="for which PyYAML is missing") as caught:
        read(tmp_path, "a: 1", "c.yaml")
    assert caught.value.hint == "pip install 'meshrun[plan]', or write it as JSON"
    assert read(tmp_path, '{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(("name", "limit"), [("c.json", document.JSON_BYTES_MAX), ("c.yaml", document.YAML_BYTES_MAX)])
def test_a_file_of_a_million_nodes_is_refused_before_it_is_taken_apart(name: str, limit: int, tmp_path: Path) -> None:
    with open(tmp_path / name, "wb") as file:
        file.write(b'{"nodes": [')
        file.truncate(limit + 1)
    with pytest.raises(UsageError, match=f"is larger than {limit >> 20} MiB"):
        document.read(str(tmp_path / name))
    with pytest.raises(UsageError, match=r"/dev/zero is larger than 16 MiB, which is as much as is read"):
        document.read("/dev/zero")


def test_as_many_nodes_and_devices_as_are_planned_for_and_no_more() -> None:
    many = [{"id": str(at), "devices": 1} for at in range(clusters.NODES_MAX + 1)]
    assert len(parse_cluster({"nodes": many[:-1]}, "c").nodes) == 65536
    with pytest.raises(UsageError, match="c has 65537 nodes, more than the 65536 that are planned for"):
        parse_cluster({"nodes": many}, "c")
    wide = [{"id": str(at), "devices": 1024} for at in range(1025)]
    with pytest.raises(UsageError, match="c has 1049600 devices, more than the 1048576 that are planned for"):
        parse_cluster({"nodes": wide}, "c")


@pytest.mark.parametrize(
    ("text", "levels", "count", "devices", "last"),
    [
        ("dgx:4x8x8", ("leaf",), 32, 8, ("l3",)),
        ("dgx:2x4x8x8", ("pod", "leaf"), 64, 8, ("p1", "l3")),
        ("dgx:2x2x2x2x4", ("zone", "pod", "leaf"), 16, 4, ("z1", "p1", "l1")),
        ("dgx:3x8", (), 3, 8, ()),
        ("nvl72:8", ("nvl",), 144, 4, ("n7",)),
        ("nvl72:2x3", ("pod", "nvl"), 108, 4, ("p1", "n2")),
        ("tpu:v5e-16:6", ("slice",), 24, 4, ("s5",)),
        ("tpu:v6e-256:1", ("slice",), 64, 4, ("s0",)),
        ("tpu:v4-16:3", ("slice",), 6, 4, ("s2",)),
    ],
)
def test_a_generator_makes_what_it_says(
    text: str, levels: tuple[str, ...], count: int, devices: int, last: tuple[str, ...]
) -> None:
    made = generate(text)
    assert is_form(text)
    assert made.levels == levels
    by_id = {node.id: node for node in made.nodes}
    assert set(by_id) == {f"h{at}" for at in range(count)}
    assert {node.slot_count for node in made.nodes} == {devices}
    assert by_id[f"h{count - 1}"].path == last
    assert [node.order for node in made.nodes] == list(range(count))


def test_generated_nodes_are_shuffled_and_their_addresses_sort_badly() -> None:
    nodes = generate("dgx:4x8x8").nodes
    along_the_tree = sorted(nodes, key=lambda node: int(node.id[1:]))
    assert [node.id for node in nodes][:4] == ["h29", "h18", "h6", "h2"]  # the same on every machine
    assert along_the_tree[9].address == "10.0.0.10"
    assert sorted(nodes, key=lambda node: node.address)[1].id == "h9"
    assert generate("dgx:1x300x8").nodes != generate("dgx:300x1x8").nodes
    assert len({node.address for node in generate("dgx:8x32x16x8").nodes}) == 4096


def test_generated_slices_are_used_as_a_whole_in_the_order_of_their_hosts() -> None:
    made = generate("tpu:v5e-32:2")
    assert made.options == {"whole": "slice:8"}
    assert sorted((node.path, node.index) for node in made.nodes)[7] == (("s0",), 7)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dgx:8", "cluster 'dgx:8' is not of the form dgx:[[[ZONESx]PODSx]LEAVESx]NODESxGPUS"),
        ("dgx:4xax8", "cluster 'dgx:4xax8' is not of the form"),
        ("dgx:4x0x8", "cluster 'dgx:4x0x8' has a number that is not from 1"),
        ("dgx:4x-1x8", "cluster 'dgx:4x-1x8' is not of the form"),
        ("dgx:1000x1000x8", "dgx:1000x1000x8 has 1000000 nodes, more than the 65536 that are planned for"),
        ("dgx:4x4096", "dgx:4x4096: 4096 devices per node are more than the 1024 that one may have"),
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


def ids(cluster: ClusterSpec) -> set[str]:
    return {node.id for node in cluster.nodes}


def test_lost_nodes_are_gone_and_a_newcomer_takes_the_place_of_the_first() -> None:
    before = generate("dgx:2x2x8")
    after = apply_changes(before, "h3,h0", "h9,h8=l0,h7")
    assert ids(after) == {"h1", "h2", "h9", "h8", "h7"}
    newcomers = {node.id: node for node in after.nodes[-3:]}
    assert newcomers["h9"].path == ("l1",)  # h3's
    assert newcomers["h8"].path == ("l0",)  # as said
    assert newcomers["h7"].path == ("l0",)  # h0's
    assert newcomers["h9"].slot_count == 8
    assert newcomers["h7"].address == "10.0.0.7"
    assert [node.order for node in after.nodes[-3:]] == [4, 5, 6]


def test_nobody_knows_where_a_newcomer_stands_if_none_was_lost() -> None:
    assert apply_changes(generate("dgx:2x2x8"), "", "h9").nodes[-1].path == (None,)


@pytest.mark.parametrize(
    ("lost", "joined", "sentence"),
    [
        ("h71", "", "--lose: dgx:2x2x8 has no node 'h71'"),
        ("h1,,h2", "", "--lose 'h1,,h2' has an empty entry"),
        ("h1,h1", "", "--lose names h1 twice"),
        ("", "h1", "--join: 'h1' is there already"),
        ("h1", "h1", "--join: 'h1' is there already"),
        ("", "h9,h9=l0", "--join: 'h9' is there already"),
        ("", "=l0", "--join: '' is no name"),
        ("", "h9=p0/l0", "--join: 'p0/l0' is no path in dgx:2x2x8"),
    ],
)
def test_a_change_that_makes_no_sense_is_told_so(lost: str, joined: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_changes(generate("dgx:2x2x8"), lost, joined)
    assert str(caught.value) == sentence


def test_moves_are_counted_by_coordinates_not_by_rank() -> None:
    mesh = parse("pp=2,dp=*")
    before = Plan(shape=(2, 3), ranks={"a": (0, 1), "b": (2, 3), "c": (4, 5)}, spares=(), moved=0, reasons=())
    # dp shrinks to 2: (0,0) (0,1) (1,0) (1,1) were ranks 0, 1, 3, 4 on a, a, b, c.
    after = Plan(shape=(2, 2), ranks={"a": (0, 1), "c": (2, 3)}, spares=(), moved=1, reasons=())
    assert list_moves(before, after, mesh) == [Move("b", "c", 1)]
    assert list_moves(before, before, mesh) == []


def test_a_file_is_replaced_as_a_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    old, link = tmp_path / "plan.svg", tmp_path / "link.svg"
    old.write_text("old")
    link.symlink_to(old)
    write_file(str(link), "new")
    assert (old.read_text(), link.is_symlink()) == ("new", True)
    with pytest.raises(UsageError, match="cannot write '/dev/full': No space left on device"):
        write_file("/dev/full", "new")
    with pytest.raises(UsageError, match=r"cannot write .*: No such file or directory"):
        write_file(str(tmp_path / "nowhere" / "plan.svg"), "new")
    with pytest.raises(UsageError, match="'-' is no name of a file"):
        write_file("-", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.svg", "plan.svg"]


def test_a_full_disk_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.meshctl.plan import output_file

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    (tmp_path / "plan.svg").write_text("old")
    monkeypatch.setattr(output_file.os, "write", full)
    with pytest.raises(UsageError, match="No space left on device") as caught:
        write_file(str(tmp_path / "plan.svg"), "new")
    monkeypatch.undo()
    assert caught.value.hint == "see df -h and df -i"
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("plan.svg", "old")]
