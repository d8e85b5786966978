"""What the report says about experts: key → (English, Chinese), with braces to fill in."""

SENTENCES: dict[str, tuple[str, str]] = {
    "dead_router": (
        "{variant}: the task gives the router of layer {layers} no gradient (seed {seeds}: at most "
        "{ratio:tiny} of its experts'), so that balance terms alone train it. With one expert per "
        "token set norm_topk_prob=false.",
        "{variant}：第 {layers} 层的路由器得不到任务损失的梯度（种子 {seeds}："
        "不超过其专家梯度的 {ratio:tiny}），只由均衡项训练。每个 token 只选一个专家时，"
        "请设 norm_topk_prob=false。",
    ),
    "dead_experts": (
        "{variant}: {span} of {total} experts got no token of the validation text (seed {seeds}).",
        "{variant}：验证文本中，{total} 个专家里有 {span} 个未被选中（种子 {seeds}）。",
    ),
    "dropped": (
        "{variant}: in the worst layer capacity takes {span:percent} of the choices away.",
        "{variant}：在最差的层中，容量限制丢弃了 {span:percent} 的选择。",
    ),
    "unrouted": (
        "{variant}: in the worst layer {span:percent} of the tokens get no expert.",
        "{variant}：在最差的层中，{span:percent} 的 token 没有专家处理。",
    ),
    "unreadable": (
        "{run}: mixture.json is damaged or of another version ({problem})",
        "{run}：mixture.json 已损坏或版本不符（{problem}）",
    ),
    "unlabelled": (
        "{run}: no categories of text ({reason})",
        "{run}：没有文本类别（{reason}）",
    ),
    "balance": (
        "The busiest expert has {span:ratio} its fair share, {share:percent} of the way to "
        "collapse (worst layer; seeds: {runs}).",
        "最忙专家的负载为均分的 {span:ratio}，即到完全坍缩的 {share:percent}"
        "（最差的层；种子数：{runs}）。",
    ),
    "explained": (
        "A token's category tells {span:percent} of which expert it gets, in the layer where it "
        "tells most (layer {layers}).",
        "在类别影响最大的层（第 {layers} 层）中，token 的类别解释了专家选择的 {span:percent}。",
    ),
    "specialist": (
        "Expert {expert} of layer {layer} takes {category} {lift:ratio} as often as uniform (seed "
        "{seed}: {choices:count} of {of:count} choices; at most {ceiling:ratio} is possible).",
        "第 {layer} 层的专家 {expert} 选中“{category}”的频率为均匀的 {lift:ratio}"
        "（种子 {seed}：{of:count} 次选择中的 {choices:count} 次；上限为 {ceiling:ratio}）。",
    ),
    "specialist_same": (
        "Expert {expert} of layer {layer} takes {category} {span:ratio} as often as uniform, with "
        "all {runs} seeds.",
        "在全部 {runs} 个种子下，第 {layer} 层的专家 {expert} 选中“{category}”的频率"
        "均为均匀的 {span:ratio}。",
    ),
    "specialist_differs": (
        "With all {runs} seeds an expert takes {category} {span:ratio} as often as uniform, but "
        "not the same one (layer·expert by seed: {places}).",
        "在全部 {runs} 个种子下都有专家选中“{category}”的频率为均匀的 {span:ratio}，"
        "但不是同一个（按种子列出层·专家：{places}）。",
    ),
    "no_specialist": (
        "No category (of at least {at_least} choices) is taken {lift:ratio} as often as uniform "
        "by some expert with every seed.",
        "没有哪个类别（至少 {at_least} 次选择）在每个种子下都被某个专家"
        "以均匀的 {lift:ratio} 选中。",
    ),
    "pair": (
        "Experts {first} and {second} of layer {layer} are the closest pair: {share:percent} of "
        "the tokens of {first} go to {second} too, where the loads alone give {chance:percent} "
        "(seed {seed}).",
        "第 {layer} 层的专家 {first} 与 {second} 最常同时激活：{first} 的 token 中有 "
        "{share:percent} 也选了 {second}，仅按负载应为 {chance:percent}（种子 {seed}）。",
    ),
}
WORDS: dict[str, tuple[str, str]] = {
    "mixture_note": (
        "Counted on {tokens:short} validation tokens after training. A lift of 1 is what a router "
        "that ignores the token would give, E / K the most that is possible. An expert's number "
        "means nothing across seeds. The figures are those of the first seed.",
        "训练后在 {tokens:short} 个验证 token 上统计。倍数 1 表示与 token 无关的路由，"
        "上限为 E / K。不同种子间的专家编号没有对应关系。图中为第一个种子。",
    ),
    "routing": ("Routing over training", "训练过程中的路由"),
    "health": ("Layers", "各层"),
    "tokens": ("Experts, seed {seed}", "各专家，种子 {seed}"),
    "seed": ("seed", "种子"),
    "layer": ("layer", "层"),
    "expert": ("expert", "专家"),
    "max_violation": ("MaxVio", "MaxVio"),
    "max_violation_share": ("of ceiling", "占上限"),
    "max_violation_batch": ("MaxVio in a batch", "批内 MaxVio"),
    "load_entropy": ("load entropy / log E", "负载熵 / log E"),
    "dead_experts": ("dead experts", "未用专家"),
    "router_entropy": ("entropy of a token (nats)", "单 token 路由熵（nat）"),
    "router_entropy_of_mean": ("of the mean (nats)", "平均分布的熵（nat）"),
    "dropped_share": ("dropped", "丢弃"),
    "unrouted_share": ("unrouted", "未路由"),
    "explained_share": ("told by category", "类别可解释"),
    "gradient_ratio": ("router / experts gradient", "路由 / 专家梯度"),
    "gradient_relative": ("router gradient / weight", "路由梯度 / 权重"),
    "load": ("load / fair share", "负载 / 均分"),
    "categories": ("categories by lift", "按倍数排列的类别"),
    "top_tokens": ("tokens by lift", "按倍数排列的 token"),
}
