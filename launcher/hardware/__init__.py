"""What this machine has: accelerators and CPUs, and how the kernel and local servers are asked.

`accelerators` goes from devices to slots; `cpu_binding` (pure) and `node_binding` bind workers to CPUs; `slice_*` tell
which TPU slice this host belongs to; `metadata_server`, `api_server` and `cloud_firmware` ask what the machine is a
part of; `linux` has the interfaces of the kernel.

Looking changes nothing: no runtime is loaded, no device opened. What cannot be read counts as absent, and no question
to a server takes longer than its limit.
"""
