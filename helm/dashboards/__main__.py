"""`python -m helm.dashboards`: write the dashboards that the chart ships."""

from __future__ import annotations

import sys
from pathlib import Path

from helm.dashboards.boards import BOARDS
from helm.dashboards.build import as_json

FOLDER = Path(__file__).resolve().parents[1] / "tidemill" / "dashboards"


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        file = FOLDER / f"{board.uid}.json"
        file.write_text(as_json(board))
        print(file.relative_to(FOLDER.parents[2]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
