"""`meshctl status`: what the store says of a job, as values, in words, as JSON, and what changes in it.

`reader` fetches the keys, `state` makes an `Overview` of them without touching anything, and `render`, `document`
and `changes` say it to people and programs. Nothing here writes to the store.
"""
