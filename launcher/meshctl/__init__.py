"""`meshctl`: plans, status and checks of jobs and machines, and requests to running jobs."""
