"""Dumps of torch's flight recorder, as torch 2.13 writes them, and what is no dump."""

from __future__ import annotations

import json
from typing import Any

import pytest

from launcher.diagnosis.recorder import DUMP_MAX, GROUPS_MAX, read_dump

NOW_NS = 1_795_464_500_314_758_790


def entry(number: int, group: tuple[str, str] = ("11", "mesh_tp"), pg: int = 3, **more: Any) -> dict[str, Any]:
    return {
        "collective_seq_id": number, "input_dtypes": ["Float"], "input_sizes": [[4]], "is_p2p": False, "op_id": number,
        "output_dtypes": ["Float"], "output_sizes": [[4]], "p2p_seq_id": 0, "pg_id": pg, "process_group": list(group),
        "profiling_name": "gloo:all_reduce", "record_id": number, "retired": True, "state": "scheduled",
        "thread_id": "140367875844992", "thread_name": "python", "time_created_ns": NOW_NS - number * 10**9,
        "time_discovered_completed_ns": 0, "time_discovered_started_ns": 0, "timeout_ms": 1800000, **more,
    }  # fmt: skip


def dump(*entries: dict[str, Any], status: dict[str, Any] | None = None) -> bytes:
    config = {"": {"desc": "", "name": "", "ranks": "[]"}}
    found = {"entries": entries, "pg_config": config, "pg_status": status or {}, "version": "2.10"}
    return json.dumps({"comm_lib_version": "", "nccl_comm_state": {}, **found}).encode()


def test_of_every_group_the_oldest_open_call_is_read_and_one_whose_entries_are_gone_is_told() -> None:
    calls = [entry(1, retired=False), *(entry(number) for number in (3, 2, 4, 5)), entry(7, ("5", "mesh_dp"), 2)]
    (tp, dp), is_truncated = read_dump(dump(*calls, status={"2": {}, "3": {}}), NOW_NS)
    assert (tp.name, tp.description, [call.number for call in tp.calls], tp.last) == ("11", "mesh_tp", [1, 3, 4, 5], 5)
    assert tp.oldest_open is tp.calls[0]
    assert (tp.calls[0].operation, tp.calls[0].age_s) == ("all_reduce", 1.0)
    assert ([call.number for call in dp.calls], dp.oldest_open) == ([7], None)
    assert tp.calls[0].shape == "Float[4]"
    assert not is_truncated
    assert read_dump(dump(entry(1), status={"3": {}, "4": {}}), NOW_NS)[1]
    many = [entry(1, (str(at), ""), at) for at in range(GROUPS_MAX + 1)]
    groups, is_truncated = read_dump(dump(*many), NOW_NS)
    assert (len(groups), is_truncated) == (GROUPS_MAX, True)


def test_point_to_point_operations_do_not_count_and_a_huge_shape_is_cut() -> None:
    calls = [entry(1), entry(9, is_p2p=True), entry(9, profiling_name="nccl:all_reduce_coalesced")]
    ((tp,), _) = read_dump(dump(*calls), NOW_NS)
    assert tp.last == 1
    calls = [entry(1), *(entry(2, profiling_name=f"nccl:{name}") for name in ("_all_gather_base", "all_reduce"))]
    assert read_dump(dump(*calls), NOW_NS)[0][0].last == 1
    assert read_dump(dump(*calls[1:]), NOW_NS)[0] == ()
    ((group,), _) = read_dump(dump(entry(1, input_sizes=[[10**6] * 1000])), NOW_NS)
    assert len(group.calls[0].shape) == 48


def test_when_the_last_calls_began_and_how_long_they_took_is_read() -> None:
    at = [1000, 1010, 1040]
    calls = [entry(number, time_created_ns=ms * 10**6) for number, ms in enumerate(at, 5)]
    ((tp,), _) = read_dump(dump(*calls), NOW_NS)
    assert (tp.entered_ms, tp.lengths_ms) == ((1000, 10, 30), ())
    calls[0] |= {"duration_ms": 7.4}
    calls[1] |= {"time_discovered_started_ns": 10**7, "time_discovered_completed_ns": 10**8}
    assert read_dump(dump(*calls), NOW_NS)[0][0].lengths_ms == (7, 90, -1)
    assert read_dump(dump(calls[0], calls[2]), NOW_NS)[0][0].entered_ms == ()


GARBAGE = {
    "empty": b"",
    "list": b"[]",
    "number": b'{"entries": [1]}',
    "half": dump(entry(1))[:-40],
    "no list": b'{"entries": 3}',
    "huge": b" " * (DUMP_MAX + 1),
    "bytes": b"\xff" * 50,
    "deep": b'{"entries": ' + b"[" * 99_999,
    "deep inside": b'{"entries": [{"unknown": ' + b"[" * 99_999,
    "beyond a float": dump(entry(1, time_created_ns=-(10**400))),
    "long": dump(entry(1, duration_ms=1e300)),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_what_is_no_dump_is_refused_in_a_sentence(garbage: bytes) -> None:
    with pytest.raises(ValueError, match=r"^the flight recorder's dump "):
        read_dump(garbage, NOW_NS)
