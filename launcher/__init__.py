"""One node of a training job: devices in, plan, processes out."""

__version__ = "0.1.0"
