"""What every vLLM process runs first: children end with their parent, and on CPUs matrix products read the parameters themselves.

vLLM finds `register` by the entry point `vllm.general_plugins` in processes it starts anew; our server calls it too, and forked processes inherit
what it did.
"""

from __future__ import annotations

import multiprocessing
import os

from tidemill.local.parent import die_with_parent

_done = False


def register() -> None:
    global _done
    if _done:
        return
    _done = True
    if multiprocessing.parent_process() is not None:
        die_with_parent()
    os.register_at_fork(after_in_child=die_with_parent)
    keep_cpu_weights_readable()


def keep_cpu_weights_readable() -> None:
    """Turn off vLLM's oneDNN pre-packing on CPUs.

    Pre-packing copies each linear layer's weight into an opaque oneDNN handle and replaces the parameter by an empty tensor (or, for an output
    matrix, leaves a parameter that is no longer used). Nothing could then say what the engine computes with, and a checksum over the parameters
    would be a checksum over nothing. Without it `layer.weight` is the one copy, and `torch.nn.functional.linear` reads it.
    """
    from vllm import _custom_ops
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _custom_ops._supports_onednn = False
