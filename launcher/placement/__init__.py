"""Which ranks go where: nodes, mesh and the previous plan in, the new plan and its reasons out. Pure.

`capacity` finds the largest valid world, `units` what must stay together, `planner` and `choice` the layout, with
`stability` for who keeps a place; `problem` states it in arrays, `search` solves it, `explain` says why. `adapter`
speaks with the agreement.

No clock, no file, no thread: the same input gives the same plan on every node, since any of them may lead.
"""
