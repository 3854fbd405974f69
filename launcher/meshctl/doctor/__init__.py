"""`meshctl doctor`: what a run would find here, and what would stop or hurt it.

A job that does not start, or dies hours later, often does so for a reason that could have been seen: 64 MiB of shared
memory, a store that refuses a password, a proxy between two pods. Here everything that a run would look at is looked
at and shown, with where it comes from, and checks say what may go wrong and what to do. `machine_reader`, `cgroups`,
`probes`, `addresses` and `store` look; `findings`, `machine`, `resources` and `sidecars` decide, and touch nothing;
`environment` shows what a worker would be told; `examination` goes from one to the next, `document` puts all that into
one object and `render` into text.
"""
