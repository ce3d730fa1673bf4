"""`tidemill crds`: write the CustomResourceDefinitions, as `kubectl apply` takes them."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tidemill.api.crd import KINDS, as_yaml


def add_to(commands: Any) -> None:
    parser = commands.add_parser("crds", help="write the definitions of RLJob and GPUCell for a cluster")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("crds"), help="folder to write to (default: crds)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the files are not what the models say")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.out
    texts = {folder / kind.file: as_yaml(kind) for kind in KINDS}
    if arguments.check:
        drifted = [file for file, text in texts.items() if not file.exists() or file.read_text() != text]
        for file in drifted:
            print(f"{file} is not what the models say; write it anew with `tidemill crds --out {folder}`", file=sys.stderr)
        return 1 if drifted else 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in texts.items():
            file.write_text(text)
            print(file)
    except OSError as cause:
        print(f"cannot write to {folder}: {cause.strerror}; give another --out", file=sys.stderr)
        return 2
    return 0
