"""`meshctl doctor`: examines the conditions of a run here, and reports what would stop or harm it.

A job that does not start, or dies hours later, often does so for a reason that was visible before: 64 MiB of shared
memory, a store that refuses a password, a proxy between two pods. The doctor reads and shows everything that a run
would use, with its origin, and checks report what may go wrong and what to do. `machine_reader`, `cgroups`, `probes`,
`addresses` and `store` read; `findings`, `machine`, `resources` and `sidecars` decide, without I/O; `environment` shows
a worker's variables; `examination` runs all steps, `document` puts the results into one object and `render` into text.
"""
