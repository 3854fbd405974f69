"""`meshctl status`: the state of a job from the store, as values, as text, as JSON, and its changes.

`state` builds an `Overview` of a job's keys without I/O, `render` formats it for users and programs, and `follow`
prints it, once or until the job ends. Nothing here writes to the store.
"""
