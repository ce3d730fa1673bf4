"""A process that reads what another exports: `reader.py` takes a descriptor from its standard input and prints the checksum of what it read."""

import sys

import msgspec
import numpy as np

from tidemill.transfer import Region, checksum, transport
from tidemill.wire.trainer import MemoryDescriptor


def main() -> None:
    source = msgspec.json.decode(sys.stdin.readline(), type=MemoryDescriptor)
    memory = np.zeros(source.nbytes, np.uint8)
    way = transport()
    way.pull(source, Region(memory.ctypes.data, memory.nbytes), 60)
    print(checksum.of_bytes(memory.data), flush=True)
    way.close()


if __name__ == "__main__":
    main()
