"""The placement as a problem in arrays: traffic between units, what a layout costs, and what none can be below.

`problem` states it, `hops` counts the cost of a layout, `bound` gives the lower bound, `step_time` the time of a
training step from the rates of links. numpy is imported here, and only once there is something to choose.
"""
