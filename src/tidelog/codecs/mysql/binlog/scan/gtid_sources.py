"""Who numbers transactions, as the kernel finds them by their bytes."""

from __future__ import annotations

import struct

import numpy as np

from tidelog.codecs.mysql.binlog.items import GtidSource, MariaDbSource
from tidelog.codecs.mysql.binlog.kernels import slots as kernel
from tidelog.codecs.mysql.binlog.scan.state import ScanState
from tidelog.model.records import UInt8s


class GtidSources:
    """The sources that one scan has met.

    Attributes:
        all: in the order of their numbers.
        keys: uint8[..., 16], a uuid, or domain and server id each.
    """

    def __init__(self, state: ScanState) -> None:
        self.all: tuple[GtidSource, ...] = ()
        self.keys: UInt8s = np.zeros((8, 16), dtype=np.uint8)
        self._state = state

    def number(self, source: GtidSource) -> int:
        """The number of a source; a new one is added."""
        if source in self.all:
            return self.all.index(source)
        number = len(self.all)
        self.all = (*self.all, source)
        if number == len(self.keys):
            longer = np.zeros((2 * number, 16), dtype=np.uint8)
            longer[:number] = self.keys
            self.keys = longer
        if isinstance(source, MariaDbSource):
            key = struct.pack("<II8x", source.domain, source.server_id)
        elif source.tag:  # never found by the kernel, which takes no tagged events
            key = bytes(16)
        else:
            key = source.uuid.bytes
        self.keys[number] = np.frombuffer(key, dtype=np.uint8)
        self._state.slots[kernel.SOURCES] = number + 1
        return number
