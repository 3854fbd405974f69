"""`meshctl status`: the state of a job, from the store or from its agents, as values, as text and as JSON.

`state` builds an `Overview` of a job's keys without I/O, `agents` one of what its agents report, and `render` formats
it for users and programs. Nothing here writes to the store.
"""
