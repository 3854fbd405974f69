"""Programs of other systems that start agents, or take part in a job: each is a package here that nothing else imports.

A host, such as Ray, holds the machines already. It gets the options of meshrun, places one agent on each of its nodes,
and reports the job's end in its own way. What hosts have in common stands beside them: `store_service` serves the store
of a job from the host's own process, so that every agent is a plain client of it. `torchrun` is no host: there
torchrun's agents run, with our rendezvous.
"""
