"""Prints the ids of the devices that CUDA's driver shows to a process with this environment, one a line.

By the driver's own library, without torch: a start takes a second rather than five. No context is made.
"""

import ctypes


def list_devices():
    """Return ids as NVML writes them. Raises OSError where there is no driver, RuntimeError for what it says."""
    driver = ctypes.CDLL("libcuda.so.1")
    answer = driver.cuInit(0)
    if answer == 100:  # CUDA_ERROR_NO_DEVICE: all are hidden
        return []
    if answer:
        raise RuntimeError(f"cuInit: {answer}")
    count = ctypes.c_int()
    if answer := driver.cuDeviceGetCount(ctypes.byref(count)):
        raise RuntimeError(f"cuDeviceGetCount: {answer}")
    return [read_id(driver, ordinal) for ordinal in range(count.value)]


def read_id(driver, ordinal):
    device, uuid = ctypes.c_int(), (ctypes.c_uint8 * 16)()
    driver.cuDeviceGet(ctypes.byref(device), ordinal)
    read = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid  # the newer one knows MIG
    if answer := read(ctypes.byref(uuid), device):
        raise RuntimeError(f"cuDeviceGetUuid: {answer}")
    digits = bytes(uuid).hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return f"GPU-{'-'.join(parts)}"


if __name__ == "__main__":
    for each in list_devices():
        print(each)
