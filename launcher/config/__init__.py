"""What the user asked for: options, environment and schedulers in, one checked Config out."""
