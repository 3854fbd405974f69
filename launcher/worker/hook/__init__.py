"""The directory that PYTHONPATH begins with in workers under `--hang-evidence`."""
