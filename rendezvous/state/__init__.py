"""What one member knows and has in progress: one state, a section for each part.

`watch_cache` and `key_cache` are its copy of the store, `request_queue` its requests, one at a time for each purpose;
`life` has the phases of a membership and of a round as tables.

A section is changed by its own part alone; a test holds it. What is not here does not survive a step of the machine.
"""
