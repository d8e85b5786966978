"""Schemas of the built-in routers and balance entries, torch-free copies of their constructors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(kw_only=True)
class TopKConfig:
    """Options of the top-k router."""

    name: str = "topk"
    score: Any = "softmax"  # softmax, or any activation's name or mapping, e.g. sigmoid
    bias: bool = False  # learned bias of the logits
    selection_bias: bool = False  # buffer that selects and never weighs
    choose_by: str = "scores"  # scores | logits: what is compared
    n_group: int = 1  # groups of neighbouring experts; divides num_experts
    topk_group: int = 1  # groups a token may choose from
    group_score: str = "max"  # max | top2: what a group is worth
    group_fill: str = "-inf"  # -inf | zero: what rejected experts compete with
    norm_topk_prob: bool = True  # divide a token's weights by their norm
    norm_p: float = 1.0  # order of that norm
    norm_eps: float = 0.0  # added to it
    norm_min: float = 0.0  # it is at least this
    routed_scaling_factor: float = 1.0  # multiplies every weight, last
    jitter: float = 0.0  # half width of the router's input noise in training, in [0, 1)
    dtype: str = "float32"  # float32 | float64 | input: precision of the logits
    apply_on: str = "output"  # output | input of the experts


@dataclass(kw_only=True)
class SparseMixerConfig:
    """Options of PhiMoE's router."""

    name: str = "sparsemixer"
    jitter: float = 0.01  # half the relative distance at which a rival is masked, in [0, 1)
    sample: bool = False  # training draws its choices and weighs them by Heun's rule
    apply_on: str = "output"  # output | input of the experts


@dataclass(kw_only=True)
class ExpertChoiceConfig:
    """Options of the expert-choice router."""

    name: str = "expert_choice"
    apply_on: str = "output"  # output | input of the experts


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
    over_layers: str = "mean"  # mean | sum | pooled
    over_tokens: str = "batch"  # batch | sequence | token
    divide_by_k: bool = True  # f over the T·K choices, else over the T tokens
    probability: str = "scores"  # scores | softmax


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
    over_layers: str = "mean"  # mean | sum | pooled


@dataclass(kw_only=True)
class ImportanceCVConfig:
    """Options of the importance term."""

    name: str = "cv"
    coefficient: float = 0.01  # factor; 0: off
    over_layers: str = "mean"  # mean | sum | pooled


@dataclass(kw_only=True)
class L1Config:
    """Options of the L1 term."""

    name: str = "l1"
    coefficient: float = 0.01  # factor; 0: off
    over_layers: str = "mean"  # mean | sum | pooled


@dataclass(kw_only=True)
class EntropyConfig:
    """Options of the entropy term."""

    name: str = "entropy"
    coefficient: float = 0.001  # factor; negative keeps routing open, 0: off
    over_layers: str = "mean"  # mean | sum | pooled


@dataclass(kw_only=True)
class SelectionBiasConfig:
    """Options of the selection-bias rule."""

    name: str = "selection_bias"
    coefficient: float = 0.001  # speed per optimizer step, in units of the score; 0: off
    step: str = "sign"  # sign | proportional
    zero_mean: bool = False  # take the mean out of each step
    decay: float = 0.0  # share of the bias forgotten per step, in [0, 1)
