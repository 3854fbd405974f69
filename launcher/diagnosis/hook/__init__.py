"""The directory that PYTHONPATH begins with in workers under `LAUNCHER_HANG_EVIDENCE=1`."""
