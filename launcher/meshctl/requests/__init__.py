"""`meshctl stop | drain | undrain | takeover | clean`: what people ask of a job, and what is swept up after one.

`submit` puts a request where the leader finds it and waits for what becomes of it; only the leader acts. `leftovers`
removes keys that no agent will read again, and only those. `session` finds the store that the options name.
"""
