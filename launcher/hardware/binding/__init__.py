"""CPU binding of workers: --numa-binding."""
