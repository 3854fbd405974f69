"""What an agent says of its own node: the journal of the run, the state of its workers, their log files.

`journal_part` is the part that hears the facts; `journal` turns them into events; `node_answers` reads what the loop
knows in microseconds, `local_state` makes a report of it in a thread, `device_memory` asks the driver in another;
`log_pages` reads the workers' files, each line once.

Nothing that may block (a log directory on a dead file system) is read in the loop.
"""
