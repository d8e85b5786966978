"""The routers, balance terms and bias rules that ship."""

from __future__ import annotations

from mlpkit.configs import routers as configs
from mlpkit.specs import BalanceSpec, RouterSpec

ROUTERS: tuple[RouterSpec, ...] = (
    RouterSpec(
        name="topk",
        target="mlpkit.routers:TopKRouter",
        summary="each token chooses its K best experts; the options are the field's families",
        paper="Shazeer 2017, arXiv:1701.06538",
        config=configs.TopKConfig,
        formula="p = score(Wx); i = topk(p + selection bias); w = scale · p[i] / ‖p[i]‖",
    ),
    RouterSpec(
        name="sparsemixer",
        target="mlpkit.routers:SparseMixerRouter",
        summary="PhiMoE's router: each choice is a softmax over its near rivals",
        paper="Liu 2024, arXiv:2409.12136",
        config=configs.SparseMixerConfig,
        formula="i_j = argmax z without i_1 … i_(j-1); w_j = softmax(z of the rivals near i_j)",
    ),
    RouterSpec(
        name="expert_choice",
        target="mlpkit.routers:ExpertChoiceRouter",
        summary="each expert takes its best T·K/E tokens; sees the future in a causal model",
        paper="Zhou 2022, arXiv:2202.09368",
        config=configs.ExpertChoiceConfig,
        formula="p = softmax(Wx); expert e takes the ceil(T·K/E) tokens of largest p_e",
        position_wise=False,
    ),
    RouterSpec(
        name="forced",
        target="mlpkit.routers:ForcedRouter",
        summary="every token goes to the same K experts; nothing is learned",
        config=configs.ForcedConfig,
        formula="i = given; w = 1/K",
        learned=False,
    ),
    RouterSpec(
        name="uniform",
        target="mlpkit.routers:UniformRouter",
        summary="round robin: perfect balance, nothing learned; the baseline of routing",
        config=configs.UniformConfig,
        formula="i_j = (t·K + j) mod E; w = 1/K",
        position_wise=False,
        learned=False,
    ),
)

BALANCES: tuple[BalanceSpec, ...] = (
    BalanceSpec(
        name="load",
        target="mlpkit.balance:LoadBalance",
        summary="product of load and probability, per layer; a uniform router gives 1",
        paper="Fedus 2021, arXiv:2101.03961",
        config=configs.LoadConfig,
        formula="E · Σ_e f_e · P_e, f_e = choices of e / (T·K)",
    ),
    BalanceSpec(
        name="load_hf",
        target="mlpkit.balance:load_hf",
        summary="load on transformers' scale: layers pooled; a uniform router gives K",
        config=configs.LoadHFConfig,
        formula="E · Σ_e f_e · P_e over the tokens of all layers, f_e = choices of e / T",
    ),
    BalanceSpec(
        name="load_minimind",
        target="mlpkit.balance:load_minimind",
        summary="load on MiniMind's scale: summed over L layers; a uniform router gives L·K",
        config=configs.LoadMiniMindConfig,
        formula="Σ_layers E · Σ_e f_e · P_e, f_e = choices of e / T",
    ),
    BalanceSpec(
        name="z",
        target="mlpkit.balance:ZLoss",
        summary="keeps router logits small",
        paper="Zoph 2022, arXiv:2202.08906",
        config=configs.ZLossConfig,
        formula="mean over tokens of logsumexp(z)²",
    ),
    BalanceSpec(
        name="cv",
        target="mlpkit.balance:ImportanceCV",
        summary="squared coefficient of variation of the experts' summed weights",
        paper="Shazeer 2017, arXiv:1701.06538",
        config=configs.ImportanceCVConfig,
        formula="var(I) / mean(I)², I_e = Σ_t w_te",
    ),
    BalanceSpec(
        name="l1",
        target="mlpkit.balance:L1",
        summary="sparsity of scores that may be zero, such as ReLU's",
        paper="Wang 2024, arXiv:2412.14711",
        config=configs.L1Config,
        formula="mean over tokens of Σ_e |s_e|",
    ),
    BalanceSpec(
        name="entropy",
        target="mlpkit.balance:Entropy",
        summary="how undecided tokens are; positive coefficients make them decide",
        config=configs.EntropyConfig,
        formula="mean over tokens of -Σ_e p_e log p_e",
    ),
    BalanceSpec(
        name="selection_bias",
        target="mlpkit.balance:SelectionBias",
        summary="moves the router's selection bias once per optimizer step; no loss",
        paper="Wang 2024, arXiv:2408.15664",
        config=configs.SelectionBiasConfig,
        formula="b ← (1 - decay) · b + coefficient · sign(mean(load) - load)",
    ),
)
