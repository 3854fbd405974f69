"""Accelerators of this node: how a kind of device is detected, and the way from devices to slots.

`contract` says what a detector is and which variables make devices visible; `nvidia` is a detector, the other kinds
are extensions; `named` reads what was asked for by name, `slots` makes workers of devices.

A detector returns an Inventory, also when it finds nothing. It lists what a worker started here would see, in its
order, and may not change the environment to find out.
"""

from launcher.hardware.accelerators.contract import Detector, DeviceKind, Inventory
from launcher.model.node import Device

__all__ = ["Detector", "Device", "DeviceKind", "Inventory"]
