"""Which cloud this machine is in, by the name of its firmware.

The address that all clouds use for their metadata servers means nothing elsewhere, or worse, a foreign machine, so a
server is asked only where there is a sign. The sign is the name of the machine's firmware, which Linux shows in files
that every user may read, also in a container. Variables such as AWS_REGION are no sign: they name the cloud whose API a
program uses, and are set on laptops too. A sandbox that hides the files has no sign.
"""

from __future__ import annotations

from collections.abc import Mapping

from launcher.hardware.linux.sysfs import FileTree

# docs/internals/decisions/0028-cloud-metadata-after-detection.md
_DMI = "/sys/class/dmi/id"
FIRMWARE_SIGNS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "aws": ((f"{_DMI}/sys_vendor", "Amazon EC2"), ("/sys/hypervisor/uuid", "ec2")),
    "gce": ((f"{_DMI}/product_name", "Google"),),
    "azure": ((f"{_DMI}/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77"),),
    "oci": ((f"{_DMI}/chassis_asset_tag", "OracleCloud.com"),),
}
"""Cloud -> files of the firmware, one of which begins with the text."""


def has_cloud_signature(cloud: str, root: str = "/") -> bool:
    """Whether the firmware says that this machine is in that cloud. `root`: the directory above /sys."""
    return any(FileTree(root).read_text(file).startswith(text) for file, text in FIRMWARE_SIGNS[cloud])


def find_cloud(root: str = "/") -> str:
    """Return the cloud of this machine, "" if there is no sign of any. `root`: the directory above /sys."""
    return next((cloud for cloud in FIRMWARE_SIGNS if has_cloud_signature(cloud, root)), "")
