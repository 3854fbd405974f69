"""The planner as the agreement sees it: texts of members in, texts of assignments out.

`description` has both texts, `planner_adapter` turns them into nodes and back, `topology` and `numbering` say where and
which a member is, `options` reads limits and costs. `one_machine` takes the planner's place where there is one layout.

A text that makes no sense is that member's fault and costs its place, not the plan.
"""
