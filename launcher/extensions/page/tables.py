"""What the page draws of a run: rows, tables and spans of time. Its script finds no words of its own for them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from launcher.views.event_view import EventView, group_events
from launcher.views.goodput import list_spans
from launcher.views.rows import RANK_COLUMNS, RANK_KINDS, RankColumn, classify_rank, explain_end, list_rows
from launcher.views.run_view import RankView, RoundView, RunView
from launcher.views.timeline import ROUNDS_MAX

ROUND_COLUMNS = (
    RankColumn("round", "round", "count"),
    RankColumn("began", "began_at", "time"),
    RankColumn("ran", "ran_s", "span"),
    RankColumn("ranks", "world_size", "count", 3),
    RankColumn("ended by", "cause", "cause"),
    RankColumn("why", "why", "wide"),
)
EVENT_COLUMNS = (
    RankColumn("time", "at", "time"),
    RankColumn("node", "node"),
    RankColumn("event", "sentence", "wide"),
)
EVENT_LINES_MAX = 200


def make_tables(run: RunView, events: Collection[EventView]) -> dict[str, Any]:
    """Make what the page needs besides the run itself. Each rank of it is a row of `rank_fields`."""
    goodput, rounds, verdict = run.goodput, run.rounds, run.verdict
    until = (verdict.ended_at if verdict is not None else 0.0) or run.at  # nothing is lost after the end
    since = until - goodput.total_s if goodput is not None else until
    if rounds and (len(rounds) >= ROUNDS_MAX or since > rounds[0].began_at):
        since = rounds[0].began_at  # what was before them is not known round by round
    return {
        "rank_fields": RankView.__struct_fields__,
        "rank_columns": RANK_COLUMNS,
        "rank_kinds": RANK_KINDS,
        "kinds": [[classify_rank(rank) for rank in node.ranks] for node in run.nodes],
        "rows": list_rows(run),
        "round_columns": ROUND_COLUMNS,
        "round_rows": [_make_round_row(one, until) for one in reversed(rounds)],
        "event_columns": EVENT_COLUMNS,
        "event_rows": [one._asdict() for one in reversed(group_events([*events])[-EVENT_LINES_MAX:])],
        "spans": list_spans(rounds, since, until),
        "since": since,
        "until": until,
    }


def _make_round_row(one: RoundView, now: float) -> dict[str, Any]:
    """Return the values of its columns; `failed_rank` leads to that rank's output."""
    found = {name: getattr(one, name) for name in ("round", "began_at", "world_size", "failed_rank")}
    is_over = one.ended_at or one.cause
    cause = (one.cause or "unknown") if is_over else ""
    ran_s = (one.ended_at or now) - one.began_at
    return {**found, "cause": cause, "ran_s": ran_s, "why": explain_end(one), "node": one.nodes[0] if one.nodes else ""}
