"""Where a job's keys lie.

`/<prefix>/<run id>/current` names the job key, a random word; everything else lies below it, so that a job
started again under the same run id meets nothing that the one before left behind.
"""

from __future__ import annotations

from rendezvous.values import NamedTuple


def current_key(prefix: str, run_id: str) -> str:
    return f"/{prefix}/{run_id}/current"


def node_number_prefix(prefix: str, run_id: str, number: int) -> str:
    """Below it, each node that is given this number says so before it joins, whatever the job will be."""
    return f"/{prefix}/{run_id}/numbers/{number}/"


class Keys(NamedTuple):
    """The keys of one job; `root` ends with the job key."""

    root: str

    @property
    def name(self) -> str:
        """The job key."""
        return self.root.rpartition("/")[2]

    @property
    def spec(self) -> str:
        return f"{self.root}/spec"

    @property
    def control(self) -> str:
        return f"{self.root}/ctl/"

    @property
    def leader(self) -> str:
        return f"{self.root}/ctl/leader"

    @property
    def round(self) -> str:
        return f"{self.root}/ctl/round"

    @property
    def stop(self) -> str:
        return f"{self.root}/ctl/stop"

    @property
    def verdict(self) -> str:
        return f"{self.root}/ctl/verdict"

    @property
    def spares(self) -> str:
        return f"{self.root}/ctl/spares"

    @property
    def drains(self) -> str:
        return f"{self.root}/ctl/drained/"

    @property
    def commands(self) -> str:
        return f"{self.root}/ctl/command/"

    @property
    def history(self) -> str:
        return f"{self.root}/history/"

    @property
    def members(self) -> str:
        return f"{self.root}/members/"

    @property
    def statuses(self) -> str:
        return f"{self.root}/status/"

    def member(self, member_id: str) -> str:
        return self.members + member_id

    def status(self, member_id: str) -> str:
        return self.statuses + member_id

    def lease(self, member_id: str) -> str:
        """What is put under this member's lease to see whether that lives; whoever reads it learns nothing."""
        return f"{self.root}/lease/{member_id}"

    def drain(self, node_name: str) -> str:
        return self.drains + node_name

    def command(self, token: str) -> str:
        return self.commands + token

    def round_history(self, round: int) -> str:
        """What is remembered of a round; numbers are padded, so that rounds sort."""
        return f"{self.history}{round:08}"

    @property
    def all_assignments(self) -> str:
        return f"{self.root}/assign/"

    def assignments(self, round: int, plan_token: str = "") -> str:
        """The prefix of a round's assignments, or of one plan's."""
        return f"{self.all_assignments}{round}/" + (f"{plan_token}/" if plan_token else "")

    def assignment(self, round: int, plan_token: str, member_id: str) -> str:
        return self.assignments(round, plan_token) + member_id


def job_keys(prefix: str, run_id: str, job_key: str) -> Keys:
    return Keys(f"/{prefix}/{run_id}/{job_key}")
