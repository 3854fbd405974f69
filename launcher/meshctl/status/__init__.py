"""`meshctl status`: the state of a job from the store, as values, as text, as JSON, and its changes.

`reader` fetches the keys, `state` builds an `Overview` of them without I/O, and `render`, `document` and `changes`
format it for users and programs. Nothing here writes to the store.
"""
