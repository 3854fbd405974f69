"""Which slice a TPU host is in."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from launcher.hardware.slice_identity import SliceIdentity, read_identity
from launcher.locality.contract import Level
from launcher.locality.keys import RemarkedLevels
from launcher.locality.merge import SourceResult, merge

HOSTS = tuple(f"train-slice-0-{index}.train" for index in range(4))
# What a pod of GKE with a v6e-16 is told, as a public repository shows it.
GKE = {
    "TPU_ACCELERATOR_TYPE": "v6e-16", "TPU_TOPOLOGY": "4x4", "TPU_HOST_BOUNDS": "2,2,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1", "TPU_SKIP_MDS_QUERY": "true", "TPU_WORKER_ID": "2",
    "TPU_WORKER_HOSTNAMES": ",".join(HOSTS), "MEGASCALE_NUM_SLICES": "1", "MEGASCALE_SLICE_ID": "0",
    "MEGASCALE_COORDINATOR_ADDRESS": HOSTS[0],
}  # fmt: skip


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        (GKE, SliceIdentity(HOSTS[0], 2, 4, HOSTS)),
        ({**GKE, "MEGASCALE_NUM_SLICES": "3", "MEGASCALE_SLICE_ID": "1", "TPU_NAME": "of-the-whole-job"},
         SliceIdentity(HOSTS[0], 2, 4, HOSTS, 1, 3)),
        # One host; GKE lists it as localhost.
        ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost", "HOSTNAME": "pod-7"},
         SliceIdentity("pod-7", 0, 1, ("localhost",))),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_NAME": "my-tpu"}, SliceIdentity("my-tpu", 0, 1, ("localhost",))),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_NAME": "of-the-whole-job", "HOSTNAME": "pod-7"},
         SliceIdentity("pod-7", 0, 1, ("localhost",))),
        # As metadata servers list hosts, and addresses that only look so.
        ({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "u:0:10.0.0.2,u:1:10.0.0.3"},
         SliceIdentity("10.0.0.2", 1, 2, ("10.0.0.2", "10.0.0.3"))),
        ({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "fd00::1,fd00::2"},
         SliceIdentity("fd00::1", 1, 2, ("fd00::1", "fd00::2"))),
        # Nobody lists the hosts: the grid of hosts, or the type, says how many there are.
        ({"TPU_WORKER_ID": "1", "TPU_HOST_BOUNDS": "1,1,2", "TPU_NAME": "t"}, SliceIdentity("t", 1, 2)),
        ({"TPU_WORKER_ID": "1", "TPU_ACCELERATOR_TYPE": "v4-16", "MEGASCALE_SLICE_ID": "0"}, SliceIdentity("0", 1, 2)),
        # The index of a pod in its Job, where there is nothing better.
        ({"TPU_WORKER_HOSTNAMES": "a,b", "JOB_COMPLETION_INDEX": "1"}, SliceIdentity("a", 1, 2, ("a", "b"))),
        # JAX, too, takes an empty one for "one slice".
        ({**GKE, "MEGASCALE_NUM_SLICES": "", "MEGASCALE_SLICE_ID": ""}, SliceIdentity(HOSTS[0], 2, 4, HOSTS)),
        ({"HOSTNAME": "laptop", "TPU_NAME": "t"}, None),
    ],
)  # fmt: skip
def test_a_host_knows_its_slice(environ: Mapping[str, str], found: SliceIdentity | None) -> None:
    assert read_identity(environ)[0] == found


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({}, "neither TPU_WORKER_ID nor TPU_WORKER_HOSTNAMES is set"),
        ({"TPU_WORKER_ID": "one", "TPU_WORKER_HOSTNAMES": "a"}, "TPU_WORKER_ID='one' is not a whole number from 0"),
        ({**GKE, "TPU_WORKER_ID": "4"}, "TPU_WORKER_ID=4 is not below the 4 of TPU_WORKER_HOSTNAMES"),
        ({**GKE, "TPU_WORKER_ID": "-1"}, "TPU_WORKER_ID='-1' is not a whole number from 0"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"},
         "TPU_WORKER_HOSTNAMES gives the slice 2 hosts, but TPU_WORKER_ID of this host is not set"),
        ({**GKE, "TPU_WORKER_HOSTNAMES": "a,b,a"}, "TPU_WORKER_HOSTNAMES lists a twice"),
        ({**GKE, "TPU_WORKER_HOSTNAMES": "a,b\x1bc"},
         r"TPU_WORKER_HOSTNAMES holds 'b\x1bc', which is not a host name"),
        ({**GKE, "MEGASCALE_SLICE_ID": "1"}, "MEGASCALE_SLICE_ID=1 is not below MEGASCALE_NUM_SLICES=1"),
        ({"TPU_WORKER_ID": "1", "TPU_ACCELERATOR_TYPE": "v4-16", "TPU_NAME": "\x1b[2J"},
         "this slice of 2 hosts has no name: TPU_WORKER_HOSTNAMES and TPU_NAME are not set"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_no_slice_and_says_why(environ: Mapping[str, str], reason: str) -> None:
    assert read_identity(environ) == (None, reason)


@pytest.mark.parametrize(
    ("hostnames", "pattern"),
    [
        (HOSTS, "train-slice-0-{}.train"),
        (("t1v-n-0-w-0", "t1v-n-0-w-1"), "t1v-n-0-w-{}"),
        (("a", "b"), ""),
        (("x0", "x1", "x3"), ""),
        ((f"{'x' * 254}0", f"{'x' * 254}1"), ""),  # longer than others would take
        ((), ""),
    ],
)
def test_names_that_count_are_one_pattern(hostnames: tuple[str, ...], pattern: str) -> None:
    assert SliceIdentity("s", 0, len(hostnames), hostnames).host_pattern == pattern


def test_that_gke_calls_a_slice_by_its_node_pool_is_no_contradiction() -> None:
    own = SourceResult("slice", (Level("slice", "train-0-0", "TPU_WORKER_HOSTNAMES"),), "")
    pool = SourceResult("kubernetes", (Level("slice", "pool-v6e", "node label cloud.google.com/gke-nodepool"),), "")
    assert merge((own, pool)) == RemarkedLevels(own.levels, ())
    assert len(merge((SourceResult("file", pool.levels, ""), own)).remarks) == 1, "the user's word may be a mistake"
