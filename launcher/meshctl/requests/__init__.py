"""`meshctl stop | drain | undrain | takeover | clean`: requests to a job, and the removal of a job's keys.

`submit` writes a request for the leader and waits for its result; only the leader acts. `leftovers` removes keys that
no agent will read again, and only those. `session` opens the store that the options name.
"""
