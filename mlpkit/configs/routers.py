"""Schemas of the built-in routers and balance entries, torch-free copies of their constructors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mlpkit.configs.run import MOST, option

OVER_LAYERS = ("mean", "sum", "pooled")
SIDES = ("output", "input")


def _over_layers() -> Any:
    return option("mean", "how the layers' terms become one", choices=OVER_LAYERS)


def _apply_on() -> Any:
    return option("output", "side of the experts that the weights multiply", choices=SIDES)


@dataclass(kw_only=True)
class TopKConfig:
    """Options of the top-k router."""

    name: str = "topk"
    score: Any = "softmax"  # softmax, or any activation's name or mapping, e.g. sigmoid
    bias: bool = False  # learned bias of the logits
    selection_bias: bool = False  # buffer that selects and never weighs
    choose_by: str = option("scores", "what is compared", choices=("scores", "logits"))
    n_group: int = option(
        1, "groups of neighbouring experts; divides num_experts", minimum=1, maximum=MOST
    )
    topk_group: int = option(
        1, "groups a token may choose from, at most n_group", minimum=1, maximum=MOST
    )
    group_score: str = option("max", "what a group is worth", choices=("max", "top2"))
    group_fill: str = option("-inf", "what rejected experts compete with", choices=("-inf", "zero"))
    norm_topk_prob: bool = True  # divide a token's weights by their norm
    norm_p: float = option(1.0, "order of that norm", minimum=1)
    norm_eps: float = option(0.0, "added to it", minimum=0)
    norm_min: float = option(0.0, "it is at least this", minimum=0)
    routed_scaling_factor: float = 1.0  # multiplies every weight, last
    jitter: float = option(
        0.0, "half width of the router's input noise in training", minimum=0, below=1
    )
    dtype: str = option(
        "float32", "precision of the logits", choices=("float32", "float64", "input")
    )
    apply_on: str = _apply_on()


@dataclass(kw_only=True)
class SparseMixerConfig:
    """Options of PhiMoE's router."""

    name: str = "sparsemixer"
    jitter: float = option(
        0.01, "half the relative distance at which a rival is masked", minimum=0, below=1
    )
    sample: bool = False  # training draws its choices and weighs them by Heun's rule
    apply_on: str = _apply_on()


@dataclass(kw_only=True)
class ExpertChoiceConfig:
    """Options of the expert-choice router."""

    name: str = "expert_choice"
    apply_on: str = _apply_on()


@dataclass(kw_only=True)
class ForcedConfig:
    """Options of the forced router."""

    name: str = "forced"
    experts: Any = None  # list of num_experts_per_tok experts; null: the first


@dataclass(kw_only=True)
class UniformConfig:
    """Options of the round-robin router: none."""

    name: str = "uniform"


@dataclass(kw_only=True)
class LoadConfig:
    """Options of the load term."""

    name: str = "load"
    coefficient: float = 0.03  # factor; 0: off
    over_layers: str = _over_layers()
    over_tokens: str = option(
        "batch", "which tokens are balanced together", choices=("batch", "sequence", "token")
    )
    divide_by_k: bool = True  # f over the T·K choices, else over the T tokens
    probability: str = option("scores", "what P is the mean of", choices=("scores", "softmax"))


@dataclass(kw_only=True)
class LoadHFConfig:
    """Options of the load term on transformers' scale."""

    name: str = "load_hf"
    coefficient: float = 0.001  # router_aux_loss_coef


@dataclass(kw_only=True)
class LoadMiniMindConfig:
    """Options of the load term on MiniMind's scale."""

    name: str = "load_minimind"
    coefficient: float = 5e-4  # router_aux_loss_coef


@dataclass(kw_only=True)
class ZLossConfig:
    """Options of the z-loss."""

    name: str = "z"
    coefficient: float = 0.001  # factor; 0: off
    over_layers: str = _over_layers()


@dataclass(kw_only=True)
class ImportanceCVConfig:
    """Options of the importance term."""

    name: str = "cv"
    coefficient: float = 0.01  # factor; 0: off
    over_layers: str = _over_layers()


@dataclass(kw_only=True)
class L1Config:
    """Options of the L1 term."""

    name: str = "l1"
    coefficient: float = 0.01  # factor; 0: off
    over_layers: str = _over_layers()


@dataclass(kw_only=True)
class EntropyConfig:
    """Options of the entropy term."""

    name: str = "entropy"
    coefficient: float = 0.001  # factor; negative keeps routing open, 0: off
    over_layers: str = _over_layers()


@dataclass(kw_only=True)
class SelectionBiasConfig:
    """Options of the selection-bias rule."""

    name: str = "selection_bias"
    coefficient: float = 0.001  # speed per optimizer step, in units of the score; 0: off
    step: str = option("sign", "how far an error moves it", choices=("sign", "proportional"))
    zero_mean: bool = False  # take the mean out of each step
    decay: float = option(0.0, "share of the bias forgotten per step", minimum=0, below=1)
