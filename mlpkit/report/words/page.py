"""The headings, notes and axes of the page: key → (English, Chinese)."""

PAGE: dict[str, tuple[str, str]] = {
    "title": ("mlpkit report", "mlpkit 报告"),
    "counted": (
        "{runs} runs of {variants} variants, {ok} finished; the baseline is {baseline}",
        "{variants} 个变体的 {runs} 次运行，完成 {ok} 次；基线为 {baseline}",
    ),
    "others": ("; {count} did neither", "，其他 {count} 次"),  # behind those that failed
    "verdict": ("Result", "结论"),
    "warnings": ("What weakens it", "需要注意"),
    "left_out": ("Left out", "未能读取"),
    "table": ("Variants", "变体对比"),
    "published": ("Published and measured", "文献结果与实测"),
    "published_note": (
        "What the source reports, in its own measure, beside what these runs measured. Models, "
        "data and budgets differ, so compare signs and order, not sizes.",
        "左为文献以其自身指标报告的数值，右为本次运行的实测值。模型、数据与预算均不同，"
        "因此应比较正负与次序，而非大小。",
    ),
    "published_variant": ("variant", "变体"),
    "published_published": ("published", "文献值"),
    "published_published_difference": ("Δ published", "文献差值"),
    "published_metric": ("measured", "实测值"),
    "published_difference": ("Δ measured", "实测差值"),
    "curves": ("Training curves", "训练曲线"),
    "fronts": ("Quality and cost", "质量与代价"),
    "heatmap": ("Two axes", "两个维度"),
    "effects": ("Main effects", "主效应"),
    "mixture": ("Experts", "专家"),
    "configuration": ("Configuration", "配置"),
    "failures": ("Runs that did not finish", "未完成的运行"),
    "provenance": ("Provenance", "来源与复现"),
    "samples": ("Samples", "文本样例"),
    "help": ("How to read this page", "如何阅读本页"),
    "filter": ("filter rows", "筛选行"),
    "group": ("Group {number}", "第 {number} 组"),
    "group_note": (
        "Data {data:brief}, tokenizer {tokenizer:brief}, {tokens:short} tokens; baseline "
        "{baseline}.",
        "数据 {data:brief}，分词器 {tokenizer:brief}，{tokens:short} 个 token；基线 {baseline}。",
    ),
    "table_note": (
        "Mean ± standard deviation over seeds; the difference to the baseline is paired by seed, "
        "with its 95 % interval. Bold: better than the baseline beyond noise. Click a heading to "
        "sort.",
        "均值 ± 各种子间的标准差；与基线之差按种子配对，并给出 95% 区间。"
        "粗体：优于基线且超出噪声。点击表头可排序。",
    ),
    "curves_note": (
        "Means over seeds; of validations with the band from the lowest to the highest seed. Point "
        "at a mark for its exact value. A last validation that took more text than the earlier "
        "ones is in the table and not on the curve.",
        "各种子的均值；验证曲线的色带为种子间的范围。将指针移到标记上可查看精确值。"
        "若最后一次验证使用的文本多于之前各次，则只列入表格，不画在曲线上。",
    ),
    "fronts_note": (
        "The dashed line joins the variants that no other one beats in both loss and cost. "
        "Whiskers are one standard deviation over seeds.",
        "虚线连接在损失与代价上均未被其他变体超越的变体。竖线为各种子间的一个标准差。",
    ),
    "heatmap_note": (
        "Mean {metric:term} of the variants with these two values, whatever their other ones; the "
        "stronger the colour, the better.",
        "具有这两个取值的变体的平均{metric:term}（不论其他取值）；颜色越浓越好。",
    ),
    "effects_note": (
        "The mean over everything else of the runs with a value, with its 95 % interval. Where "
        "axes interact, the heatmap says more.",
        "取该值的运行在其余维度上的均值，附 95% 区间。若维度之间有交互，热图更说明问题。",
    ),
    "samples_note": (
        "What the first seed of each variant writes after the same prompt.",
        "每个变体的第一个种子在同一提示后生成的文本。",
    ),
    "configuration_note": (
        "Only what differs between variants; what all runs share is folded below.",
        "仅列出变体之间不同之处；所有运行共有的配置折叠在下方。",
    ),
    "failures_note": (
        "They are counted and shown, and never enter a mean.",
        "它们会被计数并列出，但绝不计入均值。",
    ),
    "common": ("What all runs share ({count} keys)", "所有运行共有的配置（{count} 项）"),
    "log": ("last lines of the log", "日志末尾"),
    "commands": ("Commands that reproduce the runs", "复现各次运行的命令"),
    "sweep_command": ("The whole sweep", "整个扫描"),
    "key": ("key", "键"),
    "run": ("run", "运行"),
    "status": ("status", "状态"),
    "command": ("command", "命令"),
    "all": ("all", "全选"),
    "none": ("none", "全不选"),
    "no_runs_finished": ("No run has finished yet.", "尚无运行完成。"),
    "made_by": (
        "Written by mlpkit {version}. This file needs no network and no other file.",
        "由 mlpkit {version} 生成。本文件无需网络，也不依赖其他文件。",
    ),
    # axes
    "tokens": ("tokens", "token 数"),
    "flops": ("training FLOPs", "训练 FLOPs"),
    "val_perplexity": ("perplexity (validation)", "困惑度（验证）"),
    "seed": ("seed", "种子"),
    "score": ("score", "得分"),
    "seconds": ("seconds of training", "训练秒数"),
    "val_bpb": ("bits per byte (validation)", "每字节比特数（验证）"),
    "val_loss": ("loss (validation, nats per token)", "损失（验证，nat / token）"),
    "loss": ("loss (training, smoothed)", "损失（训练，平滑）"),
    "active_parameters": ("active parameters", "激活参数量"),
    "training_flops": ("training FLOPs", "训练 FLOPs"),
    "tokens_per_second": ("tokens per second", "每秒 token 数"),
    "curve_title": ("{y} against {x}", "{y} 与 {x}"),
}
