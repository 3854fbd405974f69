"""`meshctl plan`: the planner's result for a cluster, without the cluster.

`generate` and `cluster` make the nodes, of a short form or of a file; `changes` loses and adds some; `render` is the
result as text, and the pictures are an extension.

It calls the same planner with the same limits as an agent. It starts nothing and asks no store.
"""
