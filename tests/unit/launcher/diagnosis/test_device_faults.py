"""What the kernel says of devices, in an examination."""

from __future__ import annotations

import time
from pathlib import Path

from launcher.diagnosis.examiner import list_device_faults


def test_the_last_faults_of_devices_in_the_last_hour_are_listed(tmp_path: Path) -> None:
    def make_record(xid: int, age_s: float) -> str:
        return f"4,1,{int((time.monotonic() - age_s) * 1e6)},-;NVRM: Xid (PCI:0000:3b:00): {xid}, pid=1\n DEVICE=+pci\n"

    path = tmp_path / "kmsg"
    path.write_text("6,1,2,-;eth0: link is up\n" + make_record(79, 3700) + make_record(31, 3500))
    assert list_device_faults(str(path)) == ["the kernel says: NVRM: Xid (PCI:0000:3b:00): 31, pid=1"]
    path.write_text("".join(make_record(xid, 5) for xid in range(1, 6)))
    assert [fault.split()[6] for fault in list_device_faults(str(path))] == ["2,", "3,", "4,", "5,"]
    assert list_device_faults(str(tmp_path / "none")) == []
