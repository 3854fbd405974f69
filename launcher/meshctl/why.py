"""`meshctl why`: ask a running job which rank it waits for. Nothing of the job is stopped.

An agent of this user on this machine answers by its socket, which needs no options; otherwise the request goes to the
leader through the store, like any other. Either way the leader has all agents of the round look at their workers.
"""

from __future__ import annotations

import secrets
import time

import msgspec

from launcher.diagnosis.answer import Conclusion, render_answer
from launcher.meshctl.job_store import JobStore
from launcher.meshctl.requests import POLL_INTERVAL_S, write_request
from launcher.model.errors import TemporaryError, UsageError, describe
from launcher.views.questions.local_socket import LocalAgent, SocketSource
from rendezvous.errors import RecordError
from rendezvous.records import Command, decode, name_run
from rendezvous.stores.contract import Compare, Delete


def ask_agent(agent: LocalAgent, limit_s: float) -> Conclusion:
    """Ask an agent of this machine. Raises TemporaryError if there is no answer."""
    return _read_answer(SocketSource(agent).ask_why(limit_s).rstrip(), agent.run_id)


def ask_leader(jobs: JobStore, run_id: str, by: str, limit_s: float) -> Conclusion:
    """Ask the leader, through the store. Raises UsageError for a run that is over, TemporaryError without an answer."""
    command = Command(kind="why", by=by)
    current = jobs.find_run(run_id)
    keys = jobs.make_keys(run_id, current)
    key = keys.make_command_key(secrets.token_hex(8))
    write_request(jobs, run_id, command, current, keys, key)
    deadline = time.monotonic() + limit_s
    while (item := jobs.store.get(key).first) is not None:
        try:
            answered = decode(Command, item.value, item.key, jobs.secret)
        except RecordError as error:
            raise UsageError(f"{name_run(run_id)}: {error}") from None
        if answered.is_answered:
            jobs.store.txn((Compare(key, "mod", "=", item.mod_revision),), (Delete(key),))
            if answered.refused is not None:
                raise UsageError(f"{name_run(run_id)}: {describe(answered.refused)}")
            return _read_answer(answered.answer.encode(), run_id)
        if time.monotonic() >= deadline:
            jobs.store.txn((Compare(key, "mod", "=", item.mod_revision),), (Delete(key),))
            raise TemporaryError(
                f"{name_run(run_id)} has not answered for {limit_s:g} s",
                "check with meshctl status that it has a leader",
            )
        time.sleep(POLL_INTERVAL_S)
    raise TemporaryError(f"{name_run(run_id)} has just ended", "use meshctl status to show how it ended")


def render(conclusion: Conclusion, *, stacks: bool) -> str:
    """Render an answer for a terminal."""
    return conclusion.stacks if stacks and conclusion.stacks else render_answer(conclusion.answer)


def _read_answer(text: bytes, run_id: str) -> Conclusion:
    if text == b"{}":
        raise TemporaryError(f"the leader of {name_run(run_id)} has not answered in time", "try again")
    try:
        return msgspec.json.decode(text, type=Conclusion)
    except msgspec.MsgspecError:  # a sentence: why the leader does not answer it
        raise UsageError(f"{name_run(run_id)}: {text.decode(errors='replace')[:200]}") from None
