"""What is said about a run: its rounds as they pass, its failures with their cause, and how it ended.

`round_log` is the agent's log; `failures` records each worker that fails, with what `symptoms` and `failure_class` make
of its last words and its exit; `report` is the text for who is on call; `outcome` says it once, to the terminal or to
the program that has started the run.

They report and decide nothing: what a failure costs is the agreement's (rendezvous/policy). A report that cannot be
written costs the report.
"""
