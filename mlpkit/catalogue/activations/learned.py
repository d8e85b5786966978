"""The activations with parameters, and those that look at a whole position, that ship."""

from __future__ import annotations

from mlpkit.specs import ActivationSpec

LEARNED: tuple[ActivationSpec, ...] = (
    ActivationSpec(
        name="prelu",
        target="mlpkit.activations.learned:PReLU",
        summary="leaky ReLU with a trained slope",
        paper="He 2015, arXiv:1502.01852",
        formula="x if x > 0 else weight·x",
        derivative="1 if x > 0 else weight",
        range="(-∞, ∞)",
        monotone=True,
        smooth=False,
        parameters=("weight",),
    ),
    ActivationSpec(
        name="rrelu",
        target="mlpkit.activations.learned:RReLU",
        summary=(
            "leaky ReLU whose slope is drawn at random in training, and is its mean in evaluation"
        ),
        paper="Xu 2015, arXiv:1505.00853",
        formula="x if x > 0 else slope·x, slope ~ U(lower, upper)",
        derivative="1 if x > 0 else slope",
        range="(-∞, ∞)",
        monotone=True,
        smooth=False,
    ),
    ActivationSpec(
        name="swish_learned",
        target="mlpkit.activations.learned:SwishLearned",
        summary="SiLU with a trained steepness",
        paper="Ramachandran 2017, arXiv:1710.05941",
        formula="x·σ(beta·x)",
        derivative="σ(z)·(1 + z·σ(-z)), z = beta·x",
        range="[-0.2785, ∞)",
        parameters=("beta",),
    ),
    ActivationSpec(
        name="snake_beta",
        target="mlpkit.activations.learned:SnakeBeta",
        summary="Snake with trained frequency and magnitude",
        paper="Lee 2022, arXiv:2206.04658",
        formula="x + sin²(alpha·x)/beta, alpha = exp(log_alpha), beta = exp(log_beta)",
        derivative="1 + alpha/beta·sin(2·alpha·x)",
        range="(-∞, ∞)",
        monotone=True,
        parameters=("log_alpha", "log_beta"),
    ),
    ActivationSpec(
        name="star_relu_learned",
        target="mlpkit.activations.learned:StarReLULearned",
        summary="StarReLU with trained scale and bias, as in MetaFormer",
        paper="Yu 2022, arXiv:2210.13452",
        formula="scale·max(x, 0)² + bias",
        derivative="2·scale·max(x, 0)",
        range="[-0.4472, ∞)",
        monotone=True,
        parameters=("scale", "bias"),
    ),
    ActivationSpec(
        name="xielu",
        target="mlpkit.activations.learned:XIELU",
        summary="the integral of a trained ELU, as in Apertus",
        paper="Huang & Schlag 2024, arXiv:2411.13010",
        formula=(
            "a·x² + beta·x if x > 0 else b·(eˣ - 1 - x) + beta·x, a = "
            "softplus(alpha_p), b = beta + softplus(alpha_n)"
        ),
        derivative="2a·x + beta if x > 0 else b·(eˣ - 1) + beta",
        range="[-0.2054, ∞)",
        parameters=("alpha_p", "alpha_n"),
    ),
    ActivationSpec(
        name="poly_relu",
        target="mlpkit.activations.learned:PolyReLU",
        summary="a trained polynomial of ReLU",
        paper="Zhuo 2024, arXiv:2411.03884",
        formula="Σ weight[i]·max(x, 0)^(i + 1) + bias, i = 0, 1, 2",
        derivative="Σ (i + 1)·weight[i]·max(x, 0)^i if x > 0 else 0",
        range="[0, ∞)",
        monotone=True,
        smooth=False,
        parameters=("weight", "bias"),
    ),
    ActivationSpec(
        name="poly_norm",
        target="mlpkit.activations.featurewise:PolyNorm",
        summary="a trained sum of normalised powers of a position's features",
        paper="Zhuo 2024, arXiv:2411.03884",
        formula="Σ weight[i]·norm(x^(i + 1)) + bias, norm(v) = v/√(mean(v²) + eps)",
        range="(-∞, ∞)",
        elementwise=False,
        parameters=("weight", "bias"),
    ),
    ActivationSpec(
        name="solu",
        target="mlpkit.activations.featurewise:solu",
        summary="softmax linear unit: features of a position suppress one another",
        paper="Elhage 2022, https://transformer-circuits.pub/2022/solu/index.html",
        formula="x·softmax(x)",
        range="[-0.2785, ∞)",
        elementwise=False,
    ),
    ActivationSpec(
        name="gaussian_topk",
        target="mlpkit.activations.featurewise:GaussianTopK",
        summary=(
            "keeps the largest features of a position by a threshold from their mean and deviation"
        ),
        paper="You 2025, arXiv:2506.06644",
        formula="max(x - mean(x) - Φ⁻¹(sparsity)·std(x), 0)",
        range="[0, ∞)",
        smooth=False,
        elementwise=False,
    ),
)
