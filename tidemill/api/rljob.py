"""RLJob: one reinforcement-learning job, from model and tasks to the trained weights."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import Field

from tidemill.api.conditions import Condition
from tidemill.api.model import API_VERSION, Model, Quantity
from tidemill.policy.decide import Mode

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,50}[a-z0-9])?$")]
Template = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]


class Metadata(Model):
    name: Name = Field(description="Name of the job: lower-case letters, digits and dashes, at most 52 characters.")
    namespace: str = Field("", description="Namespace on a cluster; not used on one machine.")
    labels: dict[str, str] = Field({}, description="Labels, as on every Kubernetes object.")
    annotations: dict[str, str] = Field({}, description="Annotations, as on every Kubernetes object.")


class Tools(StrEnum):
    NATIVE = "Native"
    TEXT = "Text"


class ModelSpec(Model):
    source: str = Field(
        description="Where the initial weights come from: hf:ORG/NAME[@rev], path:/dir, pvc:NAME/dir, package:NAME (a Python package that holds "
        "weights) or tiny:qwen3 (a small random model, for trying things out).",
        pattern=r"^(hf|path|pvc|package|tiny):.+$",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "bfloat16", description="Number format of the published weights. The master copy is always float32."
    )
    max_length: Positive = Field(description="Longest context in tokens, prompt and answer together.")
    tools: Tools = Field(
        Tools.NATIVE, description="Native: the chat template describes tools. Text: it does not, and the product's own text tool protocol is used."
    )


class TrainingParallelism(Model):
    tensor: Positive = Field(1, description="Tensor-parallel ranks of the trainer.")
    context: Positive = Field(1, description="Context-parallel ranks of the trainer.")
    expert: Positive = Field(1, description="Expert-parallel ranks of the trainer.")
    pipeline: Positive = Field(1, description="Pipeline stages of the trainer.")
    backend: Literal["Native"] = Field("Native", description="Training back end. Native: the Hugging Face model in torch.")


class RolloutParallelism(Model):
    tensor: Positive = Field(1, description="Tensor-parallel ranks of one engine replica.")
    replicas: Positive = Field(1, description="Engine replicas in one cell.")


class Parallelism(Model):
    training: TrainingParallelism = Field(TrainingParallelism(), description="How a cell is cut up when it trains.")
    rollout: RolloutParallelism = Field(RolloutParallelism(), description="How a cell is cut up when it serves.")


class Standalone(Model):
    replicas: Count = Field(0, description="Cells that only ever roll out.")
    nodes_per_replica: Positive = Field(1, description="Nodes of one standalone replica.")


class NetworkProfile(StrEnum):
    NONE = "none"
    SHARED_DEVICE_PLUGIN = "shared-device-plugin"
    SRIOV_MULTUS = "sriov-multus"
    DRA = "dra"
    COMPUTE_DOMAIN = "compute-domain"
    EFA = "efa"


class Network(Model):
    profile: NetworkProfile = Field(NetworkProfile.NONE, description="How pods get RDMA devices; profiles are defined in the chart's values.")


class Resources(Model):
    cpu: Quantity = Field("1", description="CPU cores, as a Kubernetes quantity, e.g. 2 or 500m.")
    memory: Quantity = Field("1Gi", description="Memory, as a Kubernetes quantity, e.g. 6Gi.")


class Cells(Model):
    count: Positive = Field(description="Cells that change role: one core and count - 1 satellites.")
    nodes_per_cell: Positive = Field(1, description="Nodes that change role together.")
    gpus_per_node: Count = Field(0, description="GPUs of one node; 0 for CPU cells.")
    capacity: Positive = Field(description="C_e: executions one cell serves at once.")
    parallelism: Parallelism = Field(Parallelism(), description="How a cell's GPUs are used in either role.")
    standalone: Standalone = Field(Standalone(), description="The pool that never trains.")
    spare_nodes: Count = Field(0, description="Nodes kept free to replace a failed one.")
    network: Network = Field(Network(), description="RDMA network of the cells.")
    resources: Resources = Field(Resources(), description="CPU and memory of one node of a cell.")
    template: Template = Field({}, description="Pod template fragment, merged strategically into the cells' pods.")


class Dispatch(StrEnum):
    BOUNDARY = "Boundary"


class OnStale(StrEnum):
    WAIT = "Wait"
    DROP = "Drop"


class Schedule(Model):
    mode: Mode = Field(Mode.ELASTIC, description="Elastic: cells flip by the waterlevel. Colocate: all cells flip together. Async: a fixed split.")
    groups_per_step: Positive = Field(description="B: groups of one optimizer step.")
    rollouts_per_group: Annotated[int, Field(ge=2)] = Field(description="N: executions of one task that are compared with each other.")
    steps_per_burst: Positive = Field(1, description="mu: optimizer steps between two publications of weights.")
    prefetch_steps: Count = Field(0, description="phi: steps whose groups are dispatched ahead.")
    steps: Positive = Field(description="Optimizer steps of the whole job.")
    streaming: bool = Field(True, description="Train a group as soon as it is ready; false: wait for all groups of a step.")
    async_training_cells: Positive = Field(1, description="Mode Async: how many cells train.")
    dispatch: Dispatch = Field(Dispatch.BOUNDARY, description="When groups are dispatched: at the start of a burst.")
    max_staleness: Count | None = Field(
        None, description="Largest staleness of a sample, in publications. Default: prefetchSteps / stepsPerBurst, rounded up."
    )
    extensions: tuple[str, ...] = Field((), description="Scheduling extensions beyond the published rule. None is available yet.", max_length=0)
    on_stale: OnStale = Field(OnStale.WAIT, description="What exceeds maxStaleness makes the burst wait (Wait) or is dropped and counted (Drop).")


class Algorithm(StrEnum):
    GSPO = "GSPO"
    GRPO = "GRPO"
    DAPO = "DAPO"
    CISPO = "CISPO"


class AlgorithmSpec(Model):
    name: Algorithm = Field(Algorithm.GSPO, description="Policy-gradient objective.")
    learning_rate: Annotated[float, Field(ge=0)] = Field(1e-6, description="AdamW's learning rate.")
    token_weight_cap: Annotated[float, Field(gt=0)] = Field(5.0, description="Cap of a token's importance weight old / behaviour.")
    sequence_clip: tuple[Annotated[float, Field(gt=0)], Annotated[float, Field(gt=0)]] = Field(
        (0.995, 1.005), description="Clip range of GSPO's sequence ratio new / old."
    )
    max_grad_norm: Annotated[float, Field(gt=0)] = Field(1.0, description="Gradients are scaled down to this norm.")
    deterministic: bool = Field(False, description="Add gradients in micro-step order: the same bits whoever computed them, for tests.")


class Trajectories(Model):
    max_per_execution: Positive = Field(5, description="J_max: paths of one execution's trajectory tree that are trained.")


class SamplingSpec(Model):
    temperature: Annotated[float, Field(gt=0, le=10)] = Field(1.0, description="Sampling temperature, enforced for every harness.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Nucleus sampling, enforced for every harness.")
    max_tokens: Positive = Field(description="Most tokens of one answer; a harness may ask for fewer.")


class HarnessSpec(Model):
    preset: str = Field("react", description="The agent program: react, mini-swe-agent, or generic with image and command.")
    image: str = Field("", description="Preset generic: image of the sandbox pod; not used on one machine.")
    command: tuple[str, ...] = Field((), description="Preset generic: the program and its arguments.")
    env: dict[str, str] = Field({}, description="Environment variables added for the harness.")


class Tasks(Model):
    source: str = Field(description="Folder of tasks in Harbor's layout: path:DIR, relative to the manifest.", pattern=r"^path:.+$")
    seed: int = Field(1, description="Seed of the order in which tasks are dispatched.")
    filter: str = Field("", description="Only tasks whose name contains this text.")


class Evaluation(Model):
    source: str = Field(
        "", description="Held-out tasks, measured before the first burst and after the last, never trained. Empty: none.", pattern=r"^(path:.+)?$"
    )
    executions_per_task: Positive = Field(1, description="Executions of each held-out task in one measurement.")


class Sandbox(Model):
    resources: Resources = Field(Resources(cpu="500m", memory="512Mi"), description="Limits of one sandbox.")
    template: Template = Field({}, description="Pod template fragment, merged into sandbox pods.")


class OnGroupTimeout(StrEnum):
    SCORE = "Score"
    DROP = "Drop"


class Timeouts(Model):
    call_seconds: Annotated[float, Field(gt=0)] = Field(600, description="Deadline of one model call, waiting included.")
    execution_seconds: Annotated[float, Field(gt=0)] = Field(7200, description="Ends a harness; its work is scored as it stands.")
    group_seconds: Annotated[float, Field(gt=0)] = Field(14400, description="Ends what is left of a group.")
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
    replicas: Positive = Field(1, description="Gateway processes, sharded by execution.")
    template: Template = Field({}, description="Pod template fragment, merged into gateway pods.")


class Conductor(Model):
    storage: Quantity = Field("10Gi", description="Size of the conductor's volume.")
    template: Template = Field({}, description="Pod template fragment, merged into the conductor's pod.")


class CheckpointStorage(Model):
    size: Quantity = Field("50Gi", description="Size of the checkpoint volume.")
    class_name: str = Field("", description="Storage class; empty: the cluster's default.")
    access_mode: Literal["ReadWriteMany", "ReadWriteOnce"] = Field("ReadWriteMany", description="Access mode of the checkpoint volume.")


class Checkpoints(Model):
    every_steps: Literal[1] = Field(1, description="A checkpoint after every step; a step is committed when its checkpoint is durable.")
    keep: Annotated[int, Field(ge=2)] = Field(2, description="Checkpoints kept.")
    storage: CheckpointStorage = Field(CheckpointStorage(), description="Where checkpoints live on a cluster.")


class InitFrom(Model):
    checkpoint: str = Field("", description="Checkpoint folder of another job to start from. Empty: the model's source.")
    weights_only: bool = Field(True, description="Take the weights only, not optimizer state and counters.")


class Logging(Model):
    tensorboard: bool = Field(False, description="Also write TensorBoard files.")


class Simulation(Model):
    mean_seconds: Annotated[float, Field(gt=0)] = Field(60, description="Mean duration of an execution when served without waiting.")
    sigma: Annotated[float, Field(ge=0)] = Field(0.6, description="Sigma of the log-normal distribution of durations.")
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
    simulation: Simulation = Field(Simulation(), description="What `tidemill simulate` assumes about executions.")


class Scores(Model):
    last: float | None = Field(None, description="Mean score of the last step.")
    best: float | None = Field(None, description="Largest mean score of a step.")


class RLJobStatus(Model):
    phase: str = Field("", description="Starting, Running, Paused, Suspended, Succeeded or Failed.")
    conditions: tuple[Condition, ...] = Field((), description="Ready, Progressing, Invalid, HostMemoryFits, Failed.")
    step: int = Field(0, description="Committed optimizer steps.")
    burst: int = Field(0, description="Bursts begun.")
    policy_version: int = Field(-1, description="Last published weights.")
    waterlevel: int = Field(0, description="Unfinished executions, w = d - f.")
    cells_in_rollout: int = Field(0, description="Cells that serve.")
    cells_in_training: int = Field(0, description="Cells that train.")
    scores: Scores = Field(Scores(), description="Mean scores of steps.")
    staleness: int = Field(0, description="Largest staleness of a trained sample, in publications.")
    last_flip_seconds: float | None = Field(None, description="Duration of the last flip of any cell.")
    start_time: str = Field("", description="When the job started, RFC 3339.")
    completion_time: str = Field("", description="When it ended, RFC 3339.")


class RLJob(Model):
    api_version: Literal["tidemill.dev/v1alpha1"] = Field(description=f"Always {API_VERSION}.")
    kind: Literal["RLJob"] = Field(description="Always RLJob.")
    metadata: Metadata = Field(description="Name and labels.")
    spec: RLJobSpec = Field(description="What the job is.")
    status: RLJobStatus = Field(RLJobStatus(), description="Written by the operator.")
