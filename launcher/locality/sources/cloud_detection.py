"""Signs that this machine is in a certain cloud, or this process in a pod.

A metadata server is queried only where there is such a sign, because the address that all clouds use for theirs means
nothing elsewhere, or worse, a foreign machine. The sign is the name of the machine's firmware, which Linux shows in
files that every user may read, also in a container. Variables such as AWS_REGION are no sign: they name the cloud whose
API a program uses, and are set on laptops too. A sandbox that hides the files has no sign, and then no server is
queried.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rendezvous.values import NamedTuple

_SIZE_MAX = 256


class CloudSignature(NamedTuple):
    """`file` begins with `text` on the machines of `cloud`, according to `citation`."""

    cloud: str
    file: str
    text: str
    citation: str


SERVICE_HOST = "KUBERNETES_SERVICE_HOST"
"""The API server, set in every container of a pod: kubernetes.io/docs/tasks/run-application/access-api-from-pod."""

ACCOUNT = "var/run/secrets/kubernetes.io/serviceaccount"
"""Where a pod has the token of its account, and the API server's certificate authority."""

# docs/internals/decisions/0028-cloud-metadata-after-detection.md
_DMI = "sys/class/dmi/id"
_EC2 = "docs.aws.amazon.com/AWSEC2/latest/UserGuide/identify_ec2_instances.html"
_CLOUD_INIT = "github.com/canonical/cloud-init tools/ds-identify"

CLOUD_SIGNATURES: tuple[CloudSignature, ...] = (
    CloudSignature("aws", f"{_DMI}/sys_vendor", "Amazon EC2", _EC2),
    CloudSignature("aws", "sys/hypervisor/uuid", "ec2", _EC2),
    CloudSignature("gce", f"{_DMI}/product_name", "Google", "github.com/googleapis/google-auth-library-python"),
    CloudSignature("azure", f"{_DMI}/chassis_asset_tag", "7783-7084-3265-9085-8269-3286-77", _CLOUD_INIT),
    CloudSignature("oci", f"{_DMI}/chassis_asset_tag", "OracleCloud.com", _CLOUD_INIT),
)  # fmt: skip


def find_cloud_signature(cloud: str, root: str = "/") -> str:
    """Return the sign that this machine is in that cloud, as words; empty without one. `root`: above /sys."""
    for sign in CLOUD_SIGNATURES:
        if sign.cloud == cloud and _read_start(os.path.join(root, sign.file)).startswith(sign.text):
            return f"/{sign.file} begins with {sign.text}"
    return ""


def is_pod(environ: Mapping[str, str], root: str = "/") -> bool:
    """Whether this process runs in a pod of Kubernetes. `root`: the directory above /var."""
    return bool(environ.get(SERVICE_HOST)) or os.path.isdir(os.path.join(root, ACCOUNT))


def _read_start(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(_SIZE_MAX)
    except OSError:
        return ""
