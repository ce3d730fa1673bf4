"""What vLLM reads from the environment. It must be there before vllm, torch or transformers are imported."""

from __future__ import annotations


def environment(threads: int) -> dict[str, str]:
    return {
        "VLLM_PLUGINS": "tidemill",  # in processes that vLLM starts anew; no other package's plug-ins
        "VLLM_SERVER_DEV_MODE": "1",  # vLLM's own control routes, for people who look inside; all behind the job's token
        "VLLM_CONFIGURE_LOGGING": "0",  # its records go through our root logger: one JSON object a line
        "VLLM_LOG_STATS_INTERVAL": "3600",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",  # the folder is complete; nothing is fetched at this point
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",  # otherwise the first request compiles for 10-17 s, even with eager execution
        "OMP_NUM_THREADS": str(threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the cell's affinity is set from outside
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # on CPUs: the worker lives in the engine-core process instead of a third one
    }
