"""The configuration: options, environment and schedulers in, one validated Config out."""
