"""How growth is read from samples, and etcd's own page: what the documentation says of large jobs rests on both."""

from __future__ import annotations

import math

import pytest

from benchmarks import etcd_figures, scale
from benchmarks.runs import fit

PAGE = """\
# HELP grpc_server_msg_received_total Total number of stream messages received from the client.
# TYPE grpc_server_msg_received_total counter
grpc_server_msg_received_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 12
grpc_server_msg_received_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 3
grpc_server_msg_received_total{grpc_method="Snapshot",grpc_service="etcdserverpb.Maintenance",grpc_type="x"} 0
grpc_server_msg_sent_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 40
etcd_network_client_grpc_received_bytes_total 1500
etcd_network_client_grpc_sent_bytes_total 2.5e+06
etcd_server_proposals_committed_total 30
etcd_disk_wal_fsync_duration_seconds_count 9
process_cpu_seconds_total 1.25
process_resident_memory_bytes 3.145728e+07
etcd_mvcc_db_total_size_in_bytes 20480
"""


def test_a_fit_needs_two_points_and_points_off_the_line_widen_its_spread() -> None:
    found, two = fit({8: 8.0, 16: 20.0, 32: 30.0, 64: 70.0}), fit({8: 8.0, 16: 32.0})
    assert found is not None
    assert two is not None
    assert 0.02 < found.spread < 0.5
    assert (two.exponent, two.spread) == (pytest.approx(2.0), math.inf)
    assert fit({8: 8.0}) is fit({8: 8.0, 16: 0.0}) is fit({8: 8.0, 16: math.inf}) is None


@pytest.mark.parametrize("exponent", [0.0, 1.0, 1.5, 2.0])
def test_the_exponent_of_a_power_is_found(exponent: float) -> None:
    found = fit({size: 3.0 * size**exponent for size in (8, 64, 512)})
    assert found is not None
    assert found.exponent == pytest.approx(exponent)
    assert found.spread == pytest.approx(0.0, abs=1e-9)


def test_the_page_of_an_etcd_is_read_and_what_was_counted_before_is_taken_off() -> None:
    found = etcd_figures.parse(PAGE)
    assert found.requests == {"Txn": 12.0, "Watch": 3.0}
    assert found.answers == {"Watch": 40.0}
    assert found.counters == {"bytes_in": 1500.0, "bytes_out": 2.5e6, "commits": 30.0, "cpu_s": 1.25}
    assert found.levels == {"memory_bytes": 3.145728e7, "database_bytes": 20480.0}
    before, after = etcd_figures.parse(PAGE), etcd_figures.parse(PAGE.replace("} 12", "} 20").replace(" 1500", " 1900"))
    found = after.count_since(before)
    assert found["requests"] == {"Txn": 8.0}
    assert (found["bytes_in"], found["bytes_out"], found["commits"]) == (400.0, 0.0, 0.0)
    assert found["memory_bytes"] == 3.145728e7


def test_what_grows_faster_than_the_job_shows_in_the_table_of_fits() -> None:
    lines = [
        {
            "shape": "shared",
            "step": "first round",
            "members": size,
            "time_s": size / 100,
            "leader_cpu_s": size / 1000,
            "members_cpu_s": size / 200,
            "cpu_s": size / 500,
            "requests": {"Txn": 6.0 * size},
            "bytes_in": 2_000.0 * size,
            "bytes_out": 10.0 * size**2,
            "answers": {},
            "commits": 2.0 * size,
            "memory_bytes": 3e7,
            "records": {"members": (size, 600 * size)},
        }
        for size in (64, 128, 256)
    ]
    heads, *rows = (line.split(" | ") for line in scale.describe(lines).partition("\n\n")[0].splitlines())
    powers = dict(zip(heads, rows[-1], strict=True))
    assert powers["bytes out"] == "N^2.00 +- 0.00"
    assert powers["requests"] == "N^1.00 +- 0.00"
    assert scale.describe(lines).endswith("Bytes of a record: members 600.")
