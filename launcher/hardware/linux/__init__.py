"""Interfaces of the Linux kernel: /proc, /sys, control groups, prctl and pidfds."""
