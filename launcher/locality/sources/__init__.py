"""The sources of locality, one file each."""
