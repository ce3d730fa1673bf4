"""RLJob: one reinforcement-learning job, from model and tasks to the trained weights."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from tidemill.api.metadata import JobMetadata
from tidemill.api.model import API_VERSION, Identifier, LongText, Model, Pairs, Quantity, Text
from tidemill.api.status import RLJobStatus
from tidemill.api.template import Template
from tidemill.policy.decide import Mode
from tidemill.policy.extensions import Extension

_LARGEST = 2**31 - 1
_MANY = 1024  # of anything that becomes pods or processes: an API server would take a million without a word
Positive = Annotated[int, Field(ge=1, le=_LARGEST)]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Few = Annotated[int, Field(ge=1, le=_MANY)]
Seconds = Annotated[float, Field(ge=1, le=_LARGEST)]  # no process answers in less


class Tools(StrEnum):
    NATIVE = "Native"
    TEXT = "Text"


class ModelSpec(Model):
    source: str = Field(
        description="Where the initial weights come from: hf:ORG/NAME[@rev], path:/dir, pvc:NAME/dir, package:NAME (a Python package that holds "
        "weights) or tiny:qwen3 (a small random model, for trying things out).",
        pattern=r"^(hf|path|pvc|package|tiny):.+$",
        max_length=1024,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="Number format of the published weights. The master copy is always float32."
    )
    max_length: Positive = Field(description="Longest context in tokens, prompt and answer together.")
    tools: Tools = Field(
        Tools.NATIVE, description="Native: the chat template describes tools. Text: it does not, and the product's own text tool protocol is used."
    )


class TrainingParallelism(Model):
    tensor: Few = Field(1, description="Tensor-parallel ranks of the trainer.")
    context: Few = Field(1, description="Context-parallel ranks of the trainer.")
    expert: Few = Field(1, description="Expert-parallel ranks of the trainer.")
    pipeline: Few = Field(1, description="Pipeline stages of the trainer.")
    backend: Literal["Native"] = Field("Native", description="Training back end. Native: the Hugging Face model in torch.")


class RolloutParallelism(Model):
    tensor: Few = Field(1, description="Tensor-parallel ranks of one engine replica.")
    replicas: Few = Field(1, description="Engine replicas in one cell.")


class Parallelism(Model):
    training: TrainingParallelism = Field(TrainingParallelism(), description="How a cell is cut up when it trains.")
    rollout: RolloutParallelism = Field(RolloutParallelism(), description="How a cell is cut up when it serves.")


class Standalone(Model):
    replicas: Annotated[int, Field(ge=0, le=_MANY)] = Field(0, description="Cells that only ever roll out.")
    nodes_per_replica: Few = Field(1, description="Nodes of one standalone replica.")


class Network(Model):
    profile: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] = Field(
        "none",
        description="How pods get RDMA devices: none, or a profile of the chart's values, e.g. shared-device-plugin, sriov-multus, dra, "
        "compute-domain or efa.",
    )


class Resources(Model):
    cpu: Quantity = Field("1", description="CPU cores, as a Kubernetes quantity, e.g. 2 or 500m.")
    memory: Quantity = Field("1Gi", description="Memory, as a Kubernetes quantity, e.g. 6Gi.")


class Cells(Model):
    count: Few = Field(description="Cells that change role: one core and count - 1 satellites.")
    nodes_per_cell: Few = Field(1, description="Nodes that change role together.")
    gpus_per_node: Annotated[int, Field(ge=0, le=_MANY)] = Field(0, description="GPUs of one node; 0 for CPU cells.")
    capacity: Positive = Field(description="C_e: executions one cell serves at once.")
    parallelism: Parallelism = Field(Parallelism(), description="How a cell's GPUs are used in either role.")
    standalone: Standalone = Field(Standalone(), description="The pool that never trains.")
    spare_nodes: Annotated[int, Field(ge=0, le=_MANY)] = Field(0, description="Nodes kept free to replace a failed one.")
    network: Network = Field(Network(), description="RDMA network of the cells.")
    resources: Resources = Field(Resources(), description="CPU and memory of one node of a cell.")
    template: Template = Field({}, description="Pod template fragment, merged strategically into the cells' pods.")


class Dispatch(StrEnum):
    BOUNDARY = "Boundary"
    REFILL = "Refill"


class OnStale(StrEnum):
    WAIT = "Wait"
    DROP = "Drop"


class Schedule(Model):
    mode: Mode = Field(Mode.ELASTIC, description="Elastic: cells flip by the waterlevel. Colocate: all cells flip together. Async: a fixed split.")
    groups_per_step: Annotated[int, Field(ge=1, le=100_000)] = Field(description="B: groups of one optimizer step.")
    rollouts_per_group: Annotated[int, Field(ge=2, le=10_000)] = Field(description="N: executions of one task that are compared with each other.")
    steps_per_burst: Annotated[int, Field(ge=1, le=100_000)] = Field(1, description="mu: optimizer steps between two publications of weights.")
    prefetch_steps: Annotated[int, Field(ge=0, le=100_000)] = Field(0, description="phi: steps whose groups are dispatched ahead.")
    steps: Positive = Field(description="Optimizer steps of the whole job.")
    streaming: bool = Field(True, description="Train a group as soon as it is ready; false: wait for all groups of a step.")
    async_training_cells: Few = Field(1, description="Mode Async: how many cells train.")
    dispatch: Dispatch = Field(
        Dispatch.BOUNDARY, description="When groups are dispatched. Boundary: at the start of a burst. Refill: whenever some are missing."
    )
    max_staleness: Count | None = Field(
        None, description="Largest staleness of a sample, in publications. Default: prefetchSteps / stepsPerBurst, rounded up."
    )
    extensions: tuple[Extension, ...] = Field(
        (),
        description="Beyond the published rule, see docs/scheduling.md. A real job can have EarlyReturn, GainGate and Stay; `simulate` knows all.",
        max_length=8,
    )
    on_stale: OnStale = Field(OnStale.WAIT, description="What exceeds maxStaleness makes the burst wait (Wait) or is dropped and counted (Drop).")


class Algorithm(StrEnum):
    GSPO = "GSPO"
    GRPO = "GRPO"
    DAPO = "DAPO"
    CISPO = "CISPO"


class AlgorithmSpec(Model):
    name: Algorithm = Field(Algorithm.GSPO, description="Policy-gradient objective.")
    learning_rate: Annotated[float, Field(ge=0, le=1)] = Field(1e-6, description="AdamW's learning rate.")
    token_weight_cap: Annotated[float, Field(gt=0, le=1e6)] = Field(5.0, description="Cap of a token's importance weight old / behaviour.")
    sequence_clip: tuple[Annotated[float, Field(gt=0, le=1e6)], Annotated[float, Field(gt=0, le=1e6)]] = Field(
        (0.995, 1.005), description="Clip range of GSPO's sequence ratio new / old."
    )
    max_grad_norm: Annotated[float, Field(gt=0, le=1e9)] = Field(1.0, description="Gradients are scaled down to this norm.")
    skip_equal_groups: bool = Field(
        False,
        description="Groups whose scores are all equal teach nothing. false: they take their places in a step. true: they are dropped and counted, "
        "and with dispatch Refill others are dispatched for them.",
    )
    deterministic: bool = Field(False, description="Add gradients in micro-step order: the same bits whoever computed them, for tests.")


class Trajectories(Model):
    max_per_execution: Positive = Field(5, description="J_max: paths of one execution's trajectory tree that are trained.")


LEAST_TEMPERATURE = 0.01  # a rule, because an API server compares whole numbers with a bound's whole part


class SamplingSpec(Model):
    temperature: Annotated[float, Field(gt=0, le=10)] = Field(1.0, description="Sampling temperature, enforced for every harness.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Nucleus sampling, enforced for every harness.")
    max_tokens: Positive = Field(description="Most tokens of one answer; a harness may ask for fewer.")


HARNESS_PRESETS = ("react", "claude-code", "codex", "mini-swe-agent", "qwen-code", "opencode", "generic")

INSTALLED_PRESETS = ("claude-code", "codex", "qwen-code", "opencode")
"""Their programs come from npm, in a version that the manifest may name."""


class HarnessSpec(Model):
    preset: Identifier = Field(
        "react", description="The agent program: react, claude-code, codex, mini-swe-agent, qwen-code, opencode, or generic with a command."
    )
    version: str = Field(
        "",
        description="Version of the program that npm installs once on this machine: claude-code, codex, qwen-code, opencode. "
        "Empty: the one that Tidemill is tested with. Not used on a cluster, where the image has the program.",
        pattern=r"^([0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?)?$",
        max_length=64,
    )
    image: Text = Field(
        "", description="Image of the sandbox pods of tasks that name none; it must have the agent program on its PATH. Not used on one machine."
    )
    command: Annotated[tuple[LongText, ...], Field(max_length=256)] = Field((), description="Preset generic: the program and its arguments.")
    env: Pairs = Field({}, description="Environment variables added for the harness.")


class Tasks(Model):
    source: str = Field(
        description="Folder of tasks in Harbor's layout: path:DIR, relative to the manifest; on a cluster absolute, in the conductor's pod.",
        pattern=r"^path:.+$",
        max_length=1024,
    )
    seed: Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)] = Field(1, description="Seed of the order in which tasks are dispatched.")
    filter: Identifier = Field("", description="Only tasks whose name contains this text, or matches it if it has *, ? or [.")


class Evaluation(Model):
    source: str = Field(
        "",
        description="Held-out tasks, measured before the first burst and after the last, never trained. Empty: none.",
        pattern=r"^(path:.+)?$",
        max_length=1024,
    )
    executions_per_task: Annotated[int, Field(ge=1, le=10_000)] = Field(1, description="Executions of each held-out task in one measurement.")


LEAST_SANDBOX_MEMORY = "32Mi"


class Sandbox(Model):
    resources: Resources = Field(Resources(cpu="500m", memory="512Mi"), description="Limits of one sandbox; memory at least 32Mi.")
    template: Template = Field({}, description="Pod template fragment, merged into sandbox pods.")


class OnGroupTimeout(StrEnum):
    SCORE = "Score"
    DROP = "Drop"


class Timeouts(Model):
    call_seconds: Seconds = Field(600, description="Deadline of one model call, waiting included.")
    execution_seconds: Seconds = Field(7200, description="Ends a harness; its work is scored as it stands.")
    group_seconds: Seconds = Field(14400, description="Ends what is left of a group.")
    on_group_timeout: OnGroupTimeout = Field(
        OnGroupTimeout.SCORE, description="Score the work of executions that the group's time-out ends, or drop them."
    )


class KvOnPublish(StrEnum):
    KEEP = "Keep"
    RECOMPUTE = "Recompute"


class Rollout(Model):
    kv_on_publish: KvOnPublish = Field(
        KvOnPublish.KEEP, description="Keep: running answers go on with the KV they have. Recompute: KV of older weights is not reused."
    )


class Gateway(Model):
    replicas: Annotated[int, Field(ge=1, le=64)] = Field(1, description="Gateway processes, sharded by execution.")
    storage: Quantity = Field("10Gi", description="Size of a gateway's volume: turns of executions that go on are kept there.")
    template: Template = Field({}, description="Pod template fragment, merged into gateway pods.")


class Conductor(Model):
    storage: Quantity = Field("10Gi", description="Size of the conductor's volume.")
    template: Template = Field({}, description="Pod template fragment, merged into the conductor's pod.")


class CheckpointStorage(Model):
    size: Quantity = Field("50Gi", description="Size of the checkpoint volume.")
    class_name: Identifier = Field("", description="Storage class; empty: the cluster's default.")
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = Field("ReadWriteMany", description="Access mode of the checkpoint volume.")


class Checkpoints(Model):
    every_steps: Annotated[int, Field(ge=1, le=1)] = Field(
        1, description="A checkpoint after every step; a step is committed when its checkpoint is durable."
    )
    keep: Annotated[int, Field(ge=2, le=_LARGEST)] = Field(
        2, description="Newest checkpoints kept. The one of the published weights stays too, so there may be one more."
    )
    storage: CheckpointStorage = Field(CheckpointStorage(), description="Where checkpoints live on a cluster.")


class InitFrom(Model):
    checkpoint: Text = Field("", description="Checkpoint folder of another job to start from. Empty: the model's source.")
    weights_only: bool = Field(True, description="Take the weights only, not optimizer state and counters.")


class Logging(Model):
    tensorboard: bool = Field(True, description="Write TensorBoard's event files to `tensorboard/` of the work folder.")


class Simulation(Model):
    mean_seconds: Annotated[float, Field(gt=0, le=_LARGEST)] = Field(60, description="Mean duration of an execution when served without waiting.")
    sigma: Annotated[float, Field(ge=0, le=10)] = Field(0.6, description="Sigma of the log-normal distribution of durations.")
    group_correlation: Annotated[float, Field(ge=0, le=1)] = Field(0.3, description="Correlation of durations inside a group.")


class RLJobSpec(Model):
    model: ModelSpec = Field(description="The policy.")
    cells: Cells = Field(description="Sets of GPUs that change role together.")
    schedule: Schedule = Field(description="What is dispatched when, and which cells train.")
    algorithm: AlgorithmSpec = Field(AlgorithmSpec(), description="How gradients are computed.")
    trajectories: Trajectories = Field(Trajectories(), description="What of an execution is trained.")
    sampling: SamplingSpec = Field(description="How the policy is sampled.")
    harness: HarnessSpec = Field(HarnessSpec(), description="The agent program.")
    tasks: Tasks = Field(description="What the agents work on.")
    evaluation: Evaluation = Field(Evaluation(), description="Held-out tasks.")
    sandbox: Sandbox = Field(Sandbox(), description="Where harnesses run.")
    timeouts: Timeouts = Field(Timeouts(), description="Deadlines.")
    rollout: Rollout = Field(Rollout(), description="How cells serve.")
    gateway: Gateway = Field(Gateway(), description="The model proxy.")
    conductor: Conductor = Field(Conductor(), description="The process that keeps the job's counters, trajectories and micro-steps.")
    checkpoints: Checkpoints = Field(Checkpoints(), description="What survives the core.")
    init_from: InitFrom = Field(InitFrom(), description="Start from another job's checkpoint.")
    logging: Logging = Field(Logging(), description="What is written besides metrics.")
    suspend: bool = Field(False, description="Free all cells and keep the state.")
    active_deadline_seconds: Positive | None = Field(
        None, description="On a cluster: the job fails when it has run for so long; resuming begins the time anew. Empty: no deadline."
    )
    ttl_seconds_after_finished: Count | None = Field(
        None, description="On a cluster: a job that has ended is deleted after this time, its volumes too. Empty: it stays."
    )
    simulation: Simulation = Field(Simulation(), description="What `tidemill simulate` assumes about executions.")


class RLJob(Model):
    """One reinforcement-learning job, from model and tasks to the trained weights."""

    api_version: Literal["tidemill.dev/v1alpha1"] = Field(description=f"Always {API_VERSION}.")
    kind: Literal["RLJob"] = Field(description="Always RLJob.")
    metadata: JobMetadata = Field(description="Name and labels.")
    spec: RLJobSpec = Field(description="What the job is.")
    status: RLJobStatus = Field(RLJobStatus(), description="Written by the operator.")
