"""A process that exports memory: `holder.py BYTES [HOST ADVERTISE]` prints the descriptor, then obeys lines (`fill N`, `withdraw`).

It ends with its standard input.
"""

import sys

import msgspec
import numpy as np

from tidemill.transfer import Region, transport


def main() -> None:
    nbytes = int(sys.argv[1])
    memory = np.arange(nbytes, dtype=np.uint8)
    way = transport(*sys.argv[2:4])
    descriptor = way.export(Region(memory.ctypes.data, memory.nbytes))
    print(msgspec.json.encode(descriptor).decode(), flush=True)
    for line in sys.stdin:
        match line.split():
            case ["fill", value]:
                memory[:] = int(value)
            case ["withdraw"]:
                way.withdraw(descriptor)
        print("done", flush=True)
    way.close()


if __name__ == "__main__":
    main()
