"""Accelerators of this node: a file per kind of device, and the way from devices to slots (slots.py)."""

from launcher.hardware.accelerators.contract import Detector, DeviceKind, Inventory
from launcher.model.node import Device

__all__ = ["Detector", "Device", "DeviceKind", "Inventory"]
