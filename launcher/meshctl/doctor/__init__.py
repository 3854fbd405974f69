"""`meshctl doctor`: examines the conditions of a run here, and reports what would stop or harm it.

A job that does not start, or dies hours later, often does so for a reason that was visible before: 64 MiB of shared
memory, a store that refuses a password, a proxy between two pods. `examine` takes the steps of a run and puts what
they find into one object, `render` that into text. `machine` reads what the machine gives, `network` the address and
the store, `environment` plans the workers; `checks` are functions of these values that report what may go wrong and
what to do.
"""
