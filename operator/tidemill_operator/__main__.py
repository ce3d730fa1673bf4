"""`python -m tidemill_operator --config /etc/tidemill/operator.yaml`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from tidemill.telemetry import logs
from tidemill.wire.trust import NoCredential
from tidemill_operator.config import InvalidConfig, load_config
from tidemill_operator.identity import credential_of
from tidemill_operator.main import run


def main() -> None:
    parser = argparse.ArgumentParser(prog="tidemill_operator", description="The Kubernetes operator of Tidemill.")
    parser.add_argument("--config", type=Path, required=True, help="YAML file with images, namespaces, lease and so on")
    parser.add_argument("--host", default="0.0.0.0", help="address on which health and metrics are served")
    told = parser.parse_args()
    logs.start("operator")
    logging.getLogger("kopf").setLevel(logging.WARNING)
    try:
        config, credential = load_config(told.config), credential_of()
    except (InvalidConfig, NoCredential) as trouble:
        print(trouble, file=sys.stderr)
        sys.exit(2)
    asked_to_stop = asyncio.run(run(config, credential, told.host))
    sys.stderr.flush()
    # After a lost lease another leads: whatever thread or task might be left here must not write any more.
    os._exit(0 if asked_to_stop else 1)


if __name__ == "__main__":
    main()
