"""What is read of the kernel's log, and that nothing is made of a log that cannot be read."""

from __future__ import annotations

from pathlib import Path

from launcher.hardware.linux.kernel_log import KernelLog

LOG = """\
3,900,100,-;Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB
6,901,200,-;Memory cgroup out of memory: Killed process 4712 (python) total-vm:1kB
6,902,300,-;python invoked oom-killer: gfp_mask=0xcc0, order=0
4,903,400,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=4713, name=python, GPU has fallen off the bus.
4,904,500,-;NVRM: Xid (PCI:0000:3b:00): 31, pid='4714', name=python, Ch 00000008
4,905,600,-;NVRM: Xid (PCI:0000:3b:00): 48, pid='<unknown>', name=<unknown>, DBE
"""


def test_the_log_names_processes_killed_for_memory_and_xids(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text(LOG)
    log = KernelLog(str(tmp_path / "kmsg"))
    log.read()
    assert (log.killed, log.xids) == ({4711, 4712}, {4713: 79, 4714: 31})
    with (tmp_path / "kmsg").open("a") as file:
        file.write("4,906,700,-;NVRM: Xid (PCI:0000:3b:00): 94, pid=4714, name=python\n")
    log.read()
    assert log.xids[4714] == 94


def test_what_is_skipped_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("Out of memory: Killed process 11 (python)\n")
    log = KernelLog(str(path))
    log.skip()
    with path.open("a") as file:
        file.write("Out of memory: Killed process 12 (python)\n")
    log.read()
    assert log.killed == {12}


def test_a_log_that_cannot_be_read_says_nothing_and_is_not_skipped(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "none"))
    log.skip()
    log.read()
    assert not log.killed
    log = KernelLog(str(tmp_path / "none"))
    log.read()
    (tmp_path / "none").write_text(LOG)
    log.read()
    assert not log.killed
