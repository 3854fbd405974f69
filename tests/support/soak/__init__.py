"""A soak: real agents that come and go at random under random faults, while a checker looks over everybody's shoulder.

`python -m tests.support.soak --seconds 600 --agents 8` runs jobs one after another. Each has a phase of faults (killed,
frozen and told-to-go agents, dead supervisors and workers, an etcd that restarts or hangs), then everything is healed,
all nodes must be in one round within a stated time, and the job ends: well, by a failure, or at somebody's request.
What happened is then held against what must always hold, as the workers noted it on one clock (`lives`), as the store
saw it revision by revision (`history`), and as the agents told it. Chance comes from a seed that is printed; since real
processes have their own time, the same seed gives the same faults and not the same run.
"""
