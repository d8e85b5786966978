"""The words in pictures, in English and in Chinese, and how numbers are written there."""

from __future__ import annotations

from dataclasses import dataclass

from mlpkit.registry import suggestion


class LanguageError(LookupError):
    """A language that the pictures do not speak."""

    exit_code = 2


@dataclass(frozen=True, kw_only=True)
class Words:
    """What a picture says; braces are filled in.

    Args:
        function: Title of the panel of functions.
        derivative: Title of the panel of derivatives.
        minimum: One minimum.
        minima: More minima than are written out.
        zero: Zeros; ``{places}`` is a list.
        zeros: More zeros than are written out.
        no_minimum: There is none in the range.
        no_zero: There is none in the range.
        everywhere: In the whole range.
        key_minimum: Explains the mark of a minimum.
        key_zero: Explains the mark of a zero.
        learned: Note on learned parameters.
        one_element: Note on functions of several elements.
        separator: Between the places of a list.
        pause: Between phrases.
        input: The input of a diagram.
        output: The output of a diagram.
        router: The router of a MoE.
        chooses: How many experts a token gets.
        experts_choose: How an expert-choice router chooses.
        average: How many experts a token gets where experts choose.
        normalised: Weights are divided by their norm.
        selection_bias: A bias selects.
        groups: Only the experts of the best groups stand for election.
        experts: The experts of a MoE.
        capacity: An expert takes only so many tokens.
        shared: The expert that every token passes.
        weights: The router's weights, on an arrow.
        parameters: Parameters of an FFN.
        active: Parameters that one token uses.
        untraced: Note on parts whose connections are not known.
        step: A training step.
        loss: Axis of losses.
        training: Curve of the training loss.
        validation: Curve of the validation loss.
    """

    function: str
    derivative: str
    minimum: str
    minima: str
    zero: str
    zeros: str
    no_minimum: str
    no_zero: str
    everywhere: str
    key_minimum: str
    key_zero: str
    learned: str
    one_element: str
    separator: str
    pause: str
    input: str
    output: str
    router: str
    chooses: str
    experts_choose: str
    average: str
    normalised: str
    selection_bias: str
    groups: str
    experts: str
    capacity: str
    shared: str
    weights: str
    parameters: str
    active: str
    untraced: str
    step: str
    loss: str
    training: str
    validation: str


ENGLISH = Words(
    function="Activation f(x)",
    derivative="Derivative f′(x)",
    minimum="min {value} at {place}",
    minima="{count} minima, lowest {value} at {place}",
    zero="zero at {places}",
    zeros="{count} zeros",
    no_minimum="no minimum",
    no_zero="no zero",
    everywhere="all x",
    key_minimum="minimum",
    key_zero="zero",
    learned="learned, at the initial value: {names}",
    one_element="one of {count} elements, the others at quantiles of N(0, 1)",
    separator=", ",
    pause="; ",
    input="input x",
    output="output y",
    router="router",
    chooses="{k} of {experts} experts",
    experts_choose="experts choose tokens",
    average="{k} per token on average",
    normalised="weights normalised",
    selection_bias="selection bias",
    groups="{k} of {groups} groups first",
    experts="{count} experts",
    capacity="capacity ×{factor}",
    shared="shared expert",
    weights="weights",
    parameters="{count} parameters",
    active="{count} active per token",
    untraced="parts in order",
    step="step",
    loss="loss (nats per token)",
    training="training",
    validation="validation",
)

CHINESE = Words(
    function="激活函数 f(x)",
    derivative="导数 f′(x)",
    minimum="极小值 {value}（{place}）",
    minima="{count} 个极小值，最低 {value}（{place}）",
    zero="零点 {places}",
    zeros="{count} 个零点",
    no_minimum="无极小值",
    no_zero="无零点",
    everywhere="所有 x",
    key_minimum="极小值",
    key_zero="零点",
    learned="可学习参数取初始值：{names}",
    one_element="{count} 个元素之一，其余取 N(0, 1) 的分位数",
    separator="、",
    pause="；",
    input="输入 x",
    output="输出 y",
    router="路由器",
    chooses="{experts} 个专家选 {k}",
    experts_choose="专家选择 token",
    average="每个 token 平均 {k} 个",
    normalised="权重归一化",
    selection_bias="选择偏置",
    groups="先选 {groups} 组中的 {k} 组",
    experts="{count} 个专家",
    capacity="容量 ×{factor}",
    shared="共享专家",
    weights="权重",
    parameters="{count} 个参数",
    active="每个 token 激活 {count}",
    untraced="各部分，按顺序",
    step="步数",
    loss="损失（nat / token）",
    training="训练",
    validation="验证",
)

LANGUAGES = {"en": ENGLISH, "zh": CHINESE}


def words(lang: str) -> Words:
    """The words of a language.

    Args:
        lang: "en" or "zh".

    Raises:
        LanguageError: It is neither.
    """
    if lang not in LANGUAGES:
        raise LanguageError(
            f"unknown language {lang!r}{suggestion(lang, LANGUAGES)} "
            f"(there are: {', '.join(LANGUAGES)})"
        )
    return LANGUAGES[lang]


def number(value: float) -> str:
    """Five significant digits with a typographic minus; what is 0 within 1e-7 is 0."""
    if abs(value) < 1e-7:  # finer than places are located
        return "0"
    return f"{value:.5g}".replace("-", "−")
