"""Accelerators of other kinds than NVIDIA's: GPUs of AMD and Intel, and TPUs with what libtpu and torch_xla are told.

    amd               the detector of AMD's GPUs
    intel             the detector of Intel's GPUs
    tpu               the detector of TPU chips
    tpu_environment   the variables of workers on TPUs, and of torch_xla
    from_torch        counts a type of device that only torch knows

A detector looks at files and variables and returns an Inventory, also when it finds nothing; it loads no runtime, opens
no device and changes no environment. The signs by which a kind is searched for at all are in the kernel
(launcher/hardware/accelerators/contract.py), and so is the slice of a TPU host, which the planner needs, too.
"""
