"""What people and programs can see of a run: its events, its rounds, its nodes and ranks now, their output.

`run_view` is the model of a run that every view renders; `stored_run` makes it of records, `run_json` and `sentences`
say it. `run_events` are facts as records; `timeline` and `goodput` follow from them. `node` is what the agent has of
these, `questions` gets them to who asks, `http` serves it, `sinks` takes
events elsewhere.

A view changes nothing of a run, and two views of one fact come from one record. Nothing here is needed before the
first workers run, and a reader that is slow or gone costs the job nothing.
"""
