"""The schema of a run: model, training and what stands beside them in config.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mlpkit.sizing import LARGEST

MOST = 10_000  # layers or experts: each is a module, and a model of so many takes minutes to build


def option(default: Any, doc: str, **limits: Any) -> Any:
    """A field with its one-line meaning and limits.

    Args:
        default: The default value.
        doc: What it is, with its unit.
        limits: ``minimum``, ``above`` (exclusive), ``maximum`` or ``choices`` for its value.
    """
    return field(default=default, metadata={"doc": doc, **limits})


@dataclass(kw_only=True)
class ModelConfig:
    """The decoder around the FFN."""

    hidden_size: int = option(128, "H, width of the residual stream", minimum=1, maximum=LARGEST)
    num_layers: int = option(4, "number of blocks (attention + FFN)", minimum=1, maximum=MOST)
    num_attention_heads: int = option(4, "query heads", minimum=1, maximum=LARGEST)
    num_key_value_heads: int = option(2, "key and value heads; divides the query heads", minimum=1)
    head_dim: int | None = option(
        None, "width of a head; null: H / heads", minimum=2, maximum=LARGEST
    )
    qk_norm: bool = option(False, "RMSNorm on queries and keys, as Qwen3 has it")
    qk_norm_scope: str = option(
        "head",
        "what one of them covers: each head, or all together (OLMoE)",
        choices=("head", "all"),
    )
    attention_bias: str = option(
        "none", "biases of attention; qkv: Qwen2's", choices=("none", "qkv", "all")
    )
    vocab_size: int | None = option(
        None, "rows of the embedding; null: the tokenizer's vocabulary", minimum=1, maximum=LARGEST
    )
    rope_theta: float = option(10000.0, "base of the rotary angles", above=0)
    norm_eps: float = option(1e-5, "added to the mean square in RMSNorm", above=0)
    dropout: float = option(0.0, "dropout on each residual branch", minimum=0, below=1)
    tie_word_embeddings: bool = option(True, "one matrix for input and output embeddings")
    layers: Any = option(
        None, 'layers to slots: {"0-1": dense, "2-": main}, {every: 2, others: dense}, or a list'
    )


@dataclass(kw_only=True)
class TrainingConfig:
    """The training loop."""

    max_steps: int = option(1000, "optimizer steps", minimum=1)
    batch_size: int = option(32, "sequences per optimizer step", minimum=1)
    sequence_length: int = option(128, "tokens per sequence", minimum=2)
    gradient_accumulation_steps: int = option(
        1, "micro-batches that a batch is split into; the result does not depend on it", minimum=1
    )
    learning_rate: float = option(3e-3, "peak learning rate of AdamW", above=0)
    min_learning_rate_ratio: float = option(
        0.1, "last over peak learning rate of the cosine", minimum=0, maximum=1
    )
    warmup_steps: int = option(50, "steps of linear warm-up", minimum=0)
    weight_decay: float = option(0.1, "decay of matrices; vectors have none", minimum=0)
    beta1: float = option(0.9, "AdamW's first moment decay", minimum=0, below=1)
    beta2: float = option(0.95, "AdamW's second moment decay", minimum=0, below=1)
    max_grad_norm: float = option(1.0, "gradients are clipped to this norm", above=0)
    eval_every: int = option(200, "steps between validations", minimum=1)
    eval_tokens: int = option(
        131072, "validation tokens looked at each time; the last one takes all", minimum=1
    )
    log_every: int = option(10, "steps between lines of metrics.jsonl", minimum=1)
    checkpoint_every: int = option(
        200, "steps between checkpoints, and one after the last step; 0: none", minimum=0
    )
    keep_last: int = option(2, "newest checkpoints kept, beside the best one", minimum=2)
    checkpoint_async: bool = option(False, "write checkpoints beside training, from a copy")
    precision: str = option(
        "auto", "bf16 where the hardware has it", choices=("auto", "float32", "bf16")
    )
    device: str = option("auto", "cuda where there is one", choices=("auto", "cpu", "cuda"))
    compile: bool = option(False, "torch.compile; pays on GPUs and long runs")
    sample_tokens: int = option(200, "tokens of the sample at the end; 0: none", minimum=0)


@dataclass(kw_only=True)
class ParallelConfig:
    """The processes of a run, as torchrun or Slurm started them: data x shard."""

    data: int | None = option(None, "copies of the model; null: processes / shard", minimum=1)
    shard: int = option(1, "processes that a copy's parameters are spread over (FSDP)", minimum=1)
    expert: int = option(
        1, "processes among data x shard that each MoE's experts are spread over", minimum=1
    )
    timeout: float = option(
        300.0, "seconds that a process waits for the others before it ends", above=0
    )


@dataclass(kw_only=True)
class PublishedConfig:
    """What a paper reported, to stand beside what was measured."""

    source: str = option("", "authors, year and number of the paper, and the table")
    measure: str = option("", "what the values are, of which model and training")
    values: dict[str, float] = field(
        default_factory=dict, metadata={"doc": "the FFN, as results call it, to its value"}
    )
    note: str = option("", "what else it says")


@dataclass(kw_only=True)
class ExperimentConfig:
    """What `experiment=NAME` says of itself; the run does not depend on it."""

    name: str = option("", "the experiment's name")
    published: list[PublishedConfig] = field(
        default_factory=list, metadata={"doc": "what others reported"}
    )


@dataclass(kw_only=True)
class LintConfig:
    """What the lint lets pass."""

    allow: list[str] = field(
        default_factory=list, metadata={"doc": "codes of known traps to allow"}
    )


@dataclass(kw_only=True)
class RunConfig:
    """Everything that `mlpkit train` reads; the components are typed when they are chosen."""

    seed: int = option(
        0, "seed of initial values, data order and sampling", minimum=0, maximum=2**63 - 1
    )
    activation: Any = option(None, "inherited by every FFN that has one and says nothing itself")
    ffn: Any = option(None, "the FFN of every block that model.layers gives no other slot")
    ffns: dict[str, Any] = field(
        default_factory=dict, metadata={"doc": "further slots: +ffn@ffns.dense=swiglu adds dense"}
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    data: Any = option(None, "what to train on")
    training: TrainingConfig = field(default_factory=TrainingConfig)
    match: str = option(
        "none",
        "what every FFN's width is solved for, so that variants cost the same",
        choices=("none", "params", "active_params", "flops"),
    )
    match_to: Any = option(
        "swiglu", "whose budget that is: an FFN or preset by name, or a mapping with its options"
    )
    experiment: ExperimentConfig | None = option(
        None, "what `experiment=NAME` says of itself: its name and published results"
    )
    keep_going: bool = option(True, "in a sweep: a job that fails does not stop the others")
    rerun: bool = option(False, "in a sweep: run finished jobs again")
    dry_run: bool = option(False, "show what would run, its cost and its traps, and write nothing")
    init_from: str | None = option(
        None, "a run directory or Hugging Face folder to start from; its model unless overridden"
    )
    resume: str | None = option(
        None, "auto: go on in run_dir; or a checkpoint (…/checkpoints/step_N): go on in a new one"
    )
    run_dir: str | None = option(
        None, "null: outputs/<date>/<time>, in a sweep multirun/<id of the job>"
    )
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    lint: LintConfig = field(default_factory=LintConfig)
