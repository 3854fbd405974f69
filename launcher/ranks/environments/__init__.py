"""The environment of a worker: a file for each framework, over what torchrun exports and all workers get.

`torch` has torchrun's variables and ours, `jax` what jax.distributed reads. Each module is a function from an
assignment to variables; every variable with its reader and source is in docs/reference/worker-variables.md.

Everything is told to it: no device, port or file is looked for here.
"""
