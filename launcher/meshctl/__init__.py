"""The command `meshctl`: plans, the state of jobs and machines, and requests to running jobs.

`group` and `commands` define it with click; each command is a thin reader of the store (`job_store`), of agents
(`live`), of the planner (`plan`) or of this machine (`doctor`). `requests` is all that changes a job.

Nothing here runs in an agent, so there is no budget for its start. A command that shows may not change anything, and
no agent imports this package.
"""
