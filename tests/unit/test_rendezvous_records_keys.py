"""Keys: every one lies below its job, and each is a place of its own."""

from __future__ import annotations

from rendezvous import records


def test_every_key_of_a_job_lies_below_its_root_in_a_place_of_its_own() -> None:
    job = records.job_keys("meshrun", "run", "3f")
    places = [
        job.spec,
        job.leader,
        job.round,
        job.stop,
        job.verdict,
        job.member("m"),
        job.status("m"),
        job.assignment(1, "t", "m"),
        job.assignment(11, "t", "m"),
        job.assignment(1, "t2", "m"),
    ]
    assert len(set(places)) == len(places)
    assert all(place.startswith("/meshrun/run/3f/") for place in places)
    assert records.current_key("meshrun", "run") == "/meshrun/run/current"


def test_a_prefix_covers_what_belongs_to_it_and_nothing_else() -> None:
    job = records.job_keys("meshrun", "run", "3f")
    for prefix, inside, outside in [
        (job.control, (job.leader, job.round, job.stop, job.verdict), (job.spec, job.member("m"))),
        (job.members, (job.member("m"),), (job.status("m"),)),
        (job.statuses, (job.status("m"),), (job.member("m"),)),
        (job.assignments(1), (job.assignment(1, "t", "m"),), (job.assignment(11, "t", "m"),)),
        (job.assignments(1, "t"), (job.assignment(1, "t", "m"),), (job.assignment(1, "t2", "m"),)),
    ]:
        assert all(key.startswith(prefix) for key in inside)
        assert not any(key.startswith(prefix) for key in outside)
