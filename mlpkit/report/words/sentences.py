"""The sentences of statements: key → (English, Chinese)."""

# Formats of the values: see ``mlpkit.report.words.numbers``; ``term`` translates a known word.
SENTENCES: dict[str, tuple[str, str]] = {
    # why a row has no verdict
    "no_score": ("no run finished", "没有运行完成"),
    "single_seed": (
        "{variant} has one seed, so that noise cannot be told from an effect",
        "{variant} 只有一个种子，无法区分噪声与效果",
    ),
    "baseline_without_score": (
        "the baseline {baseline} has no finished run",
        "基线 {baseline} 没有完成的运行",
    ),
    "no_common_seed": (
        "no seed connects it with {baseline}",
        "与 {baseline} 没有共同的种子",
    ),
    "no_freedom": (
        "too few runs to estimate the noise",
        "运行次数太少，无法估计噪声",
    ),
    "zero_noise": (
        "seeds change nothing here: there is no noise to compare {difference:signed} with",
        "种子不改变结果：没有噪声可与 {difference:signed} 相比",
    ),
    "unmatched_budget": (
        "{measure:term}: {ratio:ratio} of the budget, more than {limit:percent} off",
        "{measure:term}为预算的 {ratio:ratio}，偏差超过 {limit:percent}",
    ),
    "no_width": ("not matched: {reason}", "未能匹配：{reason}"),
    "unknown_budget": ("{measure:term}: not recorded", "{measure:term}：未记录"),
    # what a row costs, and what is unusual about it
    "slower": ("{ratio:ratio} the time per token", "每 token 用时为基线的 {ratio:ratio}"),
    "faster": ("{ratio:ratio} the tokens per second", "每秒 token 数为基线的 {ratio:ratio}"),
    "more_memory": ("{ratio:ratio} the memory", "内存为基线的 {ratio:ratio}"),
    "more_parameters": ("{ratio:ratio} the parameters", "参数量为基线的 {ratio:ratio}"),
    "better_per_token_worse_per_second": (
        "better per token, and {ratio:ratio} the time to the baseline's score",
        "按 token 计更好，但达到基线得分的用时为其 {ratio:ratio}",
    ),
    "target_not_reached": (
        "never reaches the final score of {baseline}",
        "从未达到 {baseline} 的最终得分",
    ),
    "failed_runs": (
        "{failed} of {total} runs failed: {error}",
        "{total} 次运行中 {failed} 次失败：{error}",
    ),
    "unfinished_runs": ("unfinished: {statuses:term}", "未完成：{statuses:term}"),
    # what weakens the comparison
    "one_seed": (
        "One seed: differences cannot be told from noise, and there is no verdict. Add seeds, "
        "as with seed=0,1,2.",
        "只有一个种子：无法区分差异与噪声，因此不作判定。请增加种子，例如 seed=0,1,2。",
    ),
    "two_seeds": (
        "Two seeds: only large differences can be told from noise.",
        "只有两个种子：只有较大的差异才能与噪声区分。",
    ),
    "missing_seeds": (
        "Seeds that did not finish: {variants}.",
        "未完成的种子：{variants}。",
    ),
    "unequal_noise": (
        "{variant} varies more from seed to seed than the others ({sd:score} against "
        "{others:score}, p {p:p}). Intervals share one noise, which is too small for it: verdicts "
        "that rest on it are less sure than they look. Give it more seeds, or look at its runs.",
        "{variant} 在种子间的波动大于其他变体（{sd:score}，其他为 {others:score}，p {p:p}）。"
        "区间使用同一个噪声估计，对它偏小：涉及它的判定不如看上去可靠。"
        "请为它增加种子，或检查其各次运行。",
    ),
    "unmatched": (
        "Not ranked, since their {measure:term} differ from the baseline's by more than "
        "{limit:percent}: {variants}.",
        "{measure:term}与基线相差超过 {limit:percent}，不参与排名：{variants}。",
    ),
    "several_groups": (
        "The runs fall into {count} groups that are not ranked together; they differ in "
        "{differs:term}.",
        "运行分为 {count} 组，组间不排名；不同之处：{differs:term}。",
    ),
    "identical": (
        "These score exactly the same and may be one model: {variants}.",
        "以下变体得分完全相同，可能是同一个模型：{variants}。",
    ),
    "doubled": (
        "{variant}, seed {seed}, was run more than once ({runs}); {counted} counts.",
        "{variant} 的种子 {seed} 运行了多次（{runs}）；以 {counted} 为准。",
    ),
    "damaged": ("{run}: {problem}", "{run}：{problem}"),
    "mixed": (
        "The runs differ in {what:term}: {values}.",
        "各次运行的{what:term}不同：{values}。",
    ),
    "no_finished_run": ("No run has finished yet.", "尚无运行完成。"),
    # the verdict
    "runs": (
        "{ok} of {total} runs finished; {failed} failed{other:others}.",
        "{total} 次运行中完成 {ok} 次，失败 {failed} 次{other:others}。",
    ),
    "group": (
        "{variants}: data {data:brief}, tokenizer {tokenizer:brief}, {tokens:short} tokens.",
        "{variants}：数据 {data:brief}，分词器 {tokenizer:brief}，{tokens:short} 个 token。",
    ),
    "best": (
        "{variant} is the best: {metric:term} {difference:signed} "
        "[{low:signed}, {high:signed}] against {baseline} ({percent:signed_points}, p {p:p}, "
        "{seeds} seeds).",
        "{variant} 最好：{metric:term}与 {baseline} 相差 {difference:signed} "
        "[{low:signed}, {high:signed}]（{percent:signed_points}，p {p:p}，{seeds} 个种子）。",
    ),
    "tied": (
        "It cannot be told from {variants}.",
        "它与 {variants} 无法区分。",
    ),
    "none_better": (
        "No variant is better than {baseline} beyond noise.",
        "没有变体在噪声之外优于 {baseline}。",
    ),
    "better": ("Better than {baseline}: {variants}.", "优于 {baseline}：{variants}。"),
    "worse": ("Worse than {baseline}: {variants}.", "差于 {baseline}：{variants}。"),
    "indistinguishable": (
        "Indistinguishable from {baseline}: {variants}.",
        "与 {baseline} 无法区分：{variants}。",
    ),
    "not_comparable": (
        "Not comparable with {baseline}: {variants}.",
        "与 {baseline} 不可比：{variants}。",
    ),
    "no_verdict": (
        "No verdict against {baseline} on {variants} ({why:term}).",
        "对 {variants} 不作与 {baseline} 的比较判定（{why:term}）。",
    ),
    "cost": (
        "Against {baseline}, {variant} has {speed:ratio} the tokens per second, {memory:ratio} the "
        "memory and {parameters:ratio} the parameters.",
        "与 {baseline} 相比，{variant} 的每秒 token 数为 {speed:ratio}，内存为 {memory:ratio}，"
        "参数量为 {parameters:ratio}。",
    ),
    "noise": (
        "By chance alone a run varies by {sd:score} (degrees of freedom: {df}); differences below "
        "{detectable:score} cannot be told from noise.",
        "单次运行的随机波动为 {sd:score}（自由度 {df}）；小于 {detectable:score} "
        "的差异无法与噪声区分。",
    ),
}
# words that come as values: key → (English, Chinese)
TERMS: dict[str, tuple[str, str]] = {
    "parameters": ("parameters", "参数量"),
    "active_parameters": ("active parameters", "激活参数量"),
    "flops_per_token": ("FLOPs per token", "每 token FLOPs"),
    "val_bpb": ("bits per byte", "每字节比特数"),
    "val_loss": ("validation loss", "验证损失"),
    "val_perplexity": ("perplexity", "困惑度"),
    "tokens_per_second": ("tokens per second", "每秒 token 数"),
    "data": ("data", "数据"),
    "tokenizer": ("tokenizer", "分词器"),
    "tokens": ("number of tokens", "token 数"),
    "no_score": ("no finished run", "没有完成的运行"),
    "single_seed": ("one seed", "只有一个种子"),
    "baseline_without_score": ("the baseline has no score", "基线没有得分"),
    "no_common_seed": ("no seed in common", "没有共同的种子"),
    "no_freedom": ("too few runs", "运行次数太少"),
    "zero_noise": ("no noise", "没有噪声"),
    "unmatched_budget": ("another budget", "预算不同"),
    "no_width": ("no width to match", "没有可匹配的宽度"),
    "unknown_budget": ("unknown budget", "预算未知"),
    "running": ("running", "运行中"),
    "failed": ("failed", "失败"),
    "stopped": ("stopped", "已停止"),
    "lost": ("lost", "丢失"),
    "broken": ("unreadable", "不可读"),
    "mlpkit": ("mlpkit's version", "mlpkit 版本"),
    "git": ("git commit", "git 提交"),
    "torch": ("torch's version", "torch 版本"),
    "python": ("Python's version", "Python 版本"),
    "computing": ("device or precision", "设备或精度"),
    "threads": ("threads", "线程数"),
    "plugins": ("plugins", "插件"),
    "missing": ("not begun", "未开始"),
}
