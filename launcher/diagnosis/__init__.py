"""Which rank a job waits for, and why: what each worker is doing, gathered and told as one sentence.

A job whose workers wait for each other says nothing, for ever. Each agent looks at its own workers (`evidence`: their
state, their stacks, and the collectives that torch's flight recorder has of them), and `verdict` finds in what all of
them saw the ranks that wait for nobody; `answer` words it. A process of its own looks (`examiner`, `gather`), so that
the loop never waits. `part` is what the agents do.

It disturbs no worker and ends none: with `--on-hang restart` it asks the loop to.
"""
