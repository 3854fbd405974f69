"""Checks on a machine with a GPU: what the rest of the tests can only emulate.

`make gpu` runs them; nothing is fetched, and nothing beyond the standard library is imported before `packages` has
looked at what this machine's Python has. `runner` gives each check a process and a time limit of its own, `checks`
holds them, `programs/` what workers run, `table` what a record comes to on docs/reference/tested.md.
"""
