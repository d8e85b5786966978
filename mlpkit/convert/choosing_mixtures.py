"""Which class of transformers holds a mixture of experts, by its router, attention and layers."""

from __future__ import annotations

from typing import Any, NamedTuple

from omegaconf import DictConfig

from mlpkit.build.parts import split
from mlpkit.configs.moe import expert_types, moe_options
from mlpkit.convert.families import FAMILIES
from mlpkit.convert.folders import ConversionError
from mlpkit.convert.targets import Dense, Target, Widths, dense_of, notes, refuse, router_options

# Options of the router that must have these values in every class; others are looked at one by one.
FIXED: dict[str, tuple[Any, ...]] = {
    "bias": (False,),
    "norm_p": (1.0,),
    "norm_min": (0.0,),
    "apply_on": ("output",),
    "dtype": ("float32",),
}
TINY = 1e-12  # an epsilon below it is lost beside a float32 sum of scores


class Mixture(NamedTuple):
    """A model with experts, in the words that decide its class.

    Args:
        config: Our configuration.
        moe: All options of the MoE.
        router: All options of its router.
        expert: Its expert.
        sparse: For each layer whether it has experts.
        shared_width: Width of the shared FFN; 0: there is none.
        values: What every class of mixtures says alike.
    """

    config: DictConfig
    moe: dict[str, Any]
    router: dict[str, Any]
    expert: Dense
    sparse: list[bool]
    shared_width: int
    values: dict[str, Any]

    def target(self, family: str, **values: Any) -> Target:
        """The class of a family, with these values of its own."""
        jitter, found = self.router["jitter"], notes(self.config)
        if jitter and "router_jitter_noise" not in values:
            found += (f"ffn.router.jitter={jitter} is for training and is not exported",)
        return Target(FAMILIES[family], {**self.values, **values}, found)

    def refused(self, nearest: str) -> ConversionError:
        """The refusal of the whole model."""
        model, shared = self.config.model, self.moe["shared"]
        biased = " with a selection bias" if self.router["selection_bias"] else ""
        parts = [
            f"a {split(self.router['score'], {})[0]} router{biased}",
            f"norm_topk_prob={str(bool(self.router['norm_topk_prob'])).lower()}",
            f"qk-norm ({model.qk_norm_scope})" if model.qk_norm else "no qk-norm",
            f"attention_bias={model.attention_bias}",
            "experts in every layer" if all(self.sparse) else "dense layers beside the mixture",
        ]
        if shared is not None:
            parts.append(f"a shared FFN ({self.moe['shared_combine']})")
        return refuse(" and ".join([", ".join(parts[:-1]), parts[-1]]), nearest)


def mixture_target(
    config: DictConfig, slots: list[str], used: dict[str, Any], main: str, widths: Widths
) -> Target:
    """The class for a configuration with a mixture in some layers or all.

    Args:
        config: Our configuration.
        slots: The slot of each layer.
        used: The slots' FFNs.
        main: The slot of the mixture.
        widths: As in ``choose_target``.

    Raises:
        ConversionError: There is none.
    """
    moe = _options(used[main])
    router = router_options(moe["router"])
    _check_router(router)
    expert = _expert(moe, config, widths(main, "experts"))
    others = [dense_of(ffn, config, widths(slot, "")) for slot, ffn in used.items() if slot != main]
    if any(other._replace(width=0) != expert._replace(width=0) for other in others):
        raise refuse(
            "dense layers that differ from the experts in gate, activation or bias",
            "dense layers of the experts' own kind, of any width",
        )
    if moe["shared"] is not None:
        shared = dense_of(moe["shared"], config, widths(main, "shared"))
        if shared._replace(width=0) != expert._replace(width=0):
            raise refuse("a shared FFN of another kind than the experts", "one of their kind")
    values = {
        "hidden_act": expert.activation,
        "num_experts_per_tok": moe["num_experts_per_tok"],
        "intermediate_size": others[0].width if others else expert.width,
    }
    sparse = [slot == main for slot in slots]
    found = Mixture(config, moe, router, expert, sparse, widths(main, "shared"), values)
    if router["score"] != "softmax" or router["selection_bias"]:
        return _sigmoid(found)
    return _softmax(found)


def _options(component: Any) -> dict[str, Any]:
    found = moe_options(split(component, {})[1])
    for key, neutral in (("capacity_factor", None), ("latent_size", None), ("output_bias", False)):
        if found[key] != neutral:
            raise refuse(f"a MoE with {key}={found[key]}", f"{key}={neutral or 'null'}")
    return found


def _expert(moe: dict[str, Any], config: DictConfig, width: int) -> Dense:
    types = expert_types(moe["experts"] or moe["expert"], moe["num_experts"])
    if len(types) > 1:
        raise refuse(f"experts of {len(types)} types", "experts of one type (ffn.experts=null)")
    expert = dense_of(types[0][0], config, width)
    if not expert.gated or expert.bias:
        what = "biases" if expert.gated else "no gate"
        raise refuse(f"experts with {what}", "ffn/expert=swiglu or gated, without biases")
    return expert


def _check_router(router: dict[str, Any]) -> None:
    for key, allowed in FIXED.items():
        if router[key] not in allowed:
            raise refuse(f"ffn.router.{key}={router[key]}", f"ffn.router.{key}={allowed[0]}")
    if router["norm_topk_prob"] and router["norm_eps"] > TINY:
        raise refuse(f"ffn.router.norm_eps={router['norm_eps']}", "ffn.router.norm_eps=0")


def _softmax(mixture: Mixture) -> Target:
    """Mixtral, Qwen2-MoE, Qwen3-MoE or OLMoE."""
    router, model, moe = mixture.router, mixture.config.model, mixture.moe
    for key, neutral in (("n_group", 1), ("routed_scaling_factor", 1.0)):
        if router[key] != neutral:
            raise refuse(
                f"ffn.router.{key}={router[key]} with a softmax",
                f"ffn.router.{key}={neutral}, or ffn/router=glm4_moe, a sigmoid that has it",
            )
    normed, every = bool(router["norm_topk_prob"]), all(mixture.sparse)
    experts = {"num_experts": moe["num_experts"], "norm_topk_prob": normed}
    fine = {
        "moe_intermediate_size": mixture.expert.width,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [i for i, sparse in enumerate(mixture.sparse) if not sparse],
    }
    if moe["shared"] is not None:
        if moe["shared_combine"] != "gated" or model.qk_norm or model.attention_bias == "all":
            raise mixture.refused(
                "ffn.shared_combine=gated without qk-norm (qwen2_moe), or ffn/shared=null"
            )
        own = {"shared_expert_intermediate_size": mixture.shared_width}
        biased = model.attention_bias == "qkv"
        return mixture.target("qwen2_moe", **experts, **fine, **own, qkv_bias=biased)
    if model.attention_bias == "qkv":
        raise mixture.refused("model.attention_bias=none")
    biased = model.attention_bias == "all"
    if model.qk_norm and model.qk_norm_scope == "head":
        return mixture.target("qwen3_moe", **experts, **fine, attention_bias=biased)
    if not every:
        raise mixture.refused("model.qk_norm=true, with which qwen3_moe has dense layers too")
    if model.qk_norm:
        return mixture.target("olmoe", **experts, attention_bias=biased)
    if not normed or biased:
        raise mixture.refused(
            "ffn.router.norm_topk_prob=true without biases (mixtral), or model.qk_norm=true "
            "(qwen3_moe)"
        )
    return mixture.target(
        "mixtral", num_local_experts=moe["num_experts"], router_jitter_noise=router["jitter"]
    )


def _sigmoid(mixture: Mixture) -> Target:
    """DeepSeek-V3's router with ordinary attention: GLM-4-MoE."""
    router, model, moe = mixture.router, mixture.config.model, mixture.moe
    sigmoid = split(router["score"], {})[0] == "sigmoid" and router["choose_by"] == "scores"
    grouped = router["n_group"] == 1 or (
        router["group_score"] == "top2" and router["group_fill"] == "-inf"
    )
    if not (sigmoid and router["selection_bias"] and grouped):
        raise mixture.refused(
            "ffn/router=glm4_moe, a sigmoid with a selection bias and groups by their two best"
        )
    first, width = mixture.sparse.index(True), mixture.expert.width
    if not all(mixture.sparse[first:]):
        raise mixture.refused("dense layers first and experts in all others (glm4_moe)")
    if moe["shared"] is None or moe["shared_combine"] != "sum" or mixture.shared_width % width:
        raise mixture.refused(
            f"a shared FFN that is added, as wide as an expert ({width}) or a multiple (glm4_moe)"
        )
    if (model.qk_norm and model.qk_norm_scope == "all") or model.attention_bias == "all":
        raise mixture.refused("model.qk_norm_scope=head and model.attention_bias=none (glm4_moe)")
    return mixture.target(
        "glm4_moe",
        n_routed_experts=moe["num_experts"],
        n_shared_experts=mixture.shared_width // width,
        moe_intermediate_size=width,
        first_k_dense_replace=first,
        norm_topk_prob=bool(router["norm_topk_prob"]),
        n_group=router["n_group"],
        topk_group=router["topk_group"],
        routed_scaling_factor=router["routed_scaling_factor"],
        use_qk_norm=bool(model.qk_norm),
        attention_bias=model.attention_bias == "qkv",
        num_nextn_predict_layers=0,
    )
