"""What every write to the store has to compare, so that it does nothing once the basis of its decision has changed.

One row per kind of key. A write without its guards is a bug even if it does no harm: its answer may be lost, or it may
be delayed until the state of the job is another one.
"""

from __future__ import annotations

from rendezvous.events import Txn
from rendezvous.stores.contract import Delete, Get, Operation

Guard = tuple[str, str]  # key below the job's, and the target of the comparison


def find_missing_guards(request: Txn, member_id: str, is_running: bool) -> set[Guard]:
    """The guards that this request of `member_id` lacks. `is_running`: processes of a round are alive on its node."""
    named = {(strip_job_prefix(compare.key), compare.target) for compare in request.compares if compare.relation == "="}
    wanted: set[Guard] = set()
    for write in request.success:
        if not isinstance(write, Get):
            wanted |= _list_required_guards(write, member_id, is_running)
    return wanted - named


def strip_job_prefix(key: str) -> str:
    """The key below its job."""
    return key.split("/", 4)[-1]


def _list_required_guards(write: Operation, member_id: str, is_running: bool) -> set[Guard]:
    name, is_delete = strip_job_prefix(write.key), isinstance(write, Delete)
    own = f"members/{member_id}"
    leading = {("ctl/leader", "mod"), (own, "create"), ("ctl/verdict", "create")}
    if name in ("current", "spec"):
        return {(name, "mod")}
    if name == own and not is_delete:
        joining = {(own, "create"), ("current", "mod"), ("ctl/verdict", "create")}
        return joining | ({("ctl/round", "mod")} if is_running else set())
    if name == f"lease/{member_id}":  # the value has no meaning: the write only tests the lease
        return set()
    if name == f"status/{member_id}" and not is_delete:
        return {(own, "create"), (name, "mod")}
    if name == "ctl/leader":  # an election or a takeover
        return leading | {("ctl/round", "mod"), ("ctl/spares", "mod")}
    if name == "ctl/verdict":
        return leading | {("ctl/round", "mod"), ("ctl/stop", "mod")}
    if name.startswith(("assign/", "status/", "history/")):
        return leading | {("ctl/round", "mod")}
    # The seal, the stop, another member's key, the list of spares, a drain, a request of the operator.
    return leading | {(name, "mod")}
