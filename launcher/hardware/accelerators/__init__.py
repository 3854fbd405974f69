"""Accelerators of this node: the contract of a detector, and a file per kind."""

from launcher.hardware.accelerators.contract import Detector, DeviceKind, Inventory
from launcher.model.node import Device

__all__ = ["Detector", "Device", "DeviceKind", "Inventory"]
