"""Keys: every one lies below its job, and each is a place of its own."""

from __future__ import annotations

from rendezvous import records


def test_every_key_of_a_job_lies_below_its_root_in_a_place_of_its_own() -> None:
    job = records.make_job_keys("meshrun", "run", "3f")
    places = [
        job.spec,
        job.leader,
        job.round,
        job.stop,
        job.verdict,
        job.make_member_key("m"),
        job.make_status_key("m"),
        job.make_assignment_key(1, "t", "m"),
        job.make_assignment_key(11, "t", "m"),
        job.make_assignment_key(1, "t2", "m"),
    ]
    assert len(set(places)) == len(places)
    assert all(place.startswith("/meshrun/run/3f/") for place in places)
    assert records.make_current_key("meshrun", "run") == "/meshrun/run/current"


def test_a_prefix_covers_what_belongs_to_it_and_nothing_else() -> None:
    job = records.make_job_keys("meshrun", "run", "3f")
    for prefix, inside, outside in [
        (job.control, (job.leader, job.round, job.stop, job.verdict), (job.spec, job.make_member_key("m"))),
        (job.members, (job.make_member_key("m"),), (job.make_status_key("m"),)),
        (job.statuses, (job.make_status_key("m"),), (job.make_member_key("m"),)),
        (
            job.make_assignments_prefix(1),
            (job.make_assignment_key(1, "t", "m"),),
            (job.make_assignment_key(11, "t", "m"),),
        ),
        (
            job.make_assignments_prefix(1, "t"),
            (job.make_assignment_key(1, "t", "m"),),
            (job.make_assignment_key(1, "t2", "m"),),
        ),
    ]:
        assert all(key.startswith(prefix) for key in inside)
        assert not any(key.startswith(prefix) for key in outside)
