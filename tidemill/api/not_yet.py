"""What a manifest may ask that no real job can have yet. Refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from tidemill.api.rljob import RLJobSpec
from tidemill.api.rules import Violation
from tidemill.policy.extensions import REAL


def not_yet(spec: RLJobSpec) -> Iterator[Violation]:
    refused = [extension for extension in spec.schedule.extensions if extension not in REAL]
    if refused:
        known = ", ".join(sorted(REAL))
        yield Violation("spec.schedule.extensions", f"has {', '.join(refused)}, which only `tidemill simulate` knows; a real job can have {known}")
    if spec.init_from.checkpoint:
        yield Violation(
            "spec.initFrom.checkpoint", "starting from another job's checkpoint is not possible yet; use model.source path:DIR with its folder"
        )
