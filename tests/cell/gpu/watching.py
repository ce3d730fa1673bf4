"""Run in a process of its own, which loads the stub driver: tells what the cell's GPUs are seen to be, for each line on its standard input."""

from __future__ import annotations

import sys

import msgspec

from tidemill_cell.gpu.watch import Watch

names, period, deadline = sys.argv[1:]
watch = Watch(tuple(names.split(",")) if names else (), float(period), float(deadline))
watch.start()
for _ in sys.stdin:
    print(msgspec.json.encode(watch.seen()).decode(), flush=True)
