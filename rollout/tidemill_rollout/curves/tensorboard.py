"""TensorBoard's event files: `tensorboard --logdir WORKDIR/tensorboard`.

Written by hand, because the packages that write them import torch where it is installed: two seconds and 300 MB for a dozen numbers a step.
A file is a row of records (length, its checksum, data, its checksum); the data of each is a protocol-buffer message `Event`.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

from tidemill_rollout.curves.points import Point

_POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected


def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ _POLYNOMIAL if byte & 1 else byte >> 1
        table.append(byte)
    return tuple(table)


_CRC = _table()


class TensorBoard:
    """One file for each life of the process. TensorBoard reads all of a folder as one run."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        began = time.time()
        # Unbuffered: what `write` has written lies in the file, or it has raised.
        self._file = (folder / f"events.out.tfevents.{int(began)}.{os.getpid()}.{time.monotonic_ns()}").open("wb", buffering=0)
        self._file.write(record(_double(1, began) + _bytes(3, b"brain.Event:2")))

    def write(self, points: Sequence[Point]) -> None:
        """Raises `OSError`; a part of a record is taken back then, since it would end the file for every reader."""
        end = self._file.tell()
        rows = b"".join(record(event(point)) for point in points)
        try:
            if self._file.write(rows) != len(rows):
                raise OSError(f"{self._file.name}: no room for {len(rows)} bytes")
        except OSError:
            self._file.truncate(end)
            self._file.seek(end)
            raise

    def close(self) -> None:
        self._file.close()


def event(point: Point) -> bytes:
    """Event{wall_time = 1, step = 2, summary = 5: Summary{value = 1: Value{tag = 1, simple_value = 2}}}"""
    value = _bytes(1, point.curve.encode()) + _key(2, 5) + struct.pack("<f", point.value)
    return _double(1, point.time) + _key(2, 0) + _varint(point.step) + _bytes(5, _bytes(1, value))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + _checksum(length) + data + _checksum(data)


def _checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)  # masked, as the format wants it


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))
