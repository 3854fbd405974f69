"""What people and programs can see of a run: its events, its rounds, its nodes and ranks now, their output.

`run_view` is the one model of a run, which every view renders; `stored_run` makes it of the records of the agreement,
`run_json` and `sentences` say it. `run_events` are the facts as records, `timeline` and `goodput` what follows from
them. `node` makes these in the agent, `questions` gets them to who asks, `sinks` takes events elsewhere.

A view changes nothing of a run, and two views of one fact come from one record. Nothing here is needed before the
first workers run, and a reader that is slow or gone costs the job nothing.
"""
