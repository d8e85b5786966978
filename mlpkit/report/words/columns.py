"""Columns, verdicts, states and facts, and what they mean: key → (English, Chinese)."""

COLUMNS: dict[str, tuple[str, str]] = {
    # columns: key → heading; the same key with _help says what it means
    "column_variant": ("variant", "变体"),
    "column_variant_help": (
        "What differs from the others. Runs that differ only in their seed are one variant.",
        "与其他变体的不同之处；只有种子不同的运行属于同一变体。",
    ),
    "column_verdict": ("verdict", "判定"),
    "column_verdict_help": (
        "Against the baseline of the group, Holm-corrected over the variants at 5 %.",
        "与组内基线相比，在 5% 水平上对所有变体做 Holm 校正。",
    ),
    "column_seeds": ("seeds", "种子"),
    "column_seeds_help": (
        "Finished runs of all runs of the variant; only finished ones are averaged.",
        "该变体已完成的运行数 / 总运行数；只对已完成的取平均。",
    ),
    "column_val_bpb": ("bits per byte", "每字节比特"),
    "column_val_bpb_help": (
        "Validation loss in bits per byte of text: comparable across tokenizers. Lower is better.",
        "以每字节文本比特数计的验证损失，可跨分词器比较，越低越好。",
    ),
    "column_val_loss": ("loss", "损失"),
    "column_val_loss_help": (
        "Validation loss in nats per token.",
        "验证损失，单位为 nat / token。",
    ),
    "column_difference": ("Δ to baseline [95 %]", "与基线之差 [95%]"),
    "column_difference_help": (
        "Score minus the baseline's, paired by seed; the interval uses the group's pooled noise.",
        "得分减去基线得分，按种子配对；区间使用组内合并的噪声估计。",
    ),
    "column_parameters": ("parameters", "参数量"),
    "column_parameters_help": ("Of the whole model.", "整个模型的参数量。"),
    "column_active_parameters": ("active", "激活"),
    "column_active_parameters_help": (
        "Parameters that work on one token; fewer than all only with experts.",
        "处理一个 token 时参与计算的参数量；只有使用专家时才少于总量。",
    ),
    "column_ffn_parameters": ("of FFNs", "FFN 参数"),
    "column_ffn_parameters_help": ("Parameters of all FFNs.", "所有 FFN 的参数量。"),
    "column_match_residual": ("match", "预算偏差"),
    "column_match_residual_help": (
        "How far the solved width is from the budget asked for: actual over target minus 1.",
        "所求宽度与目标预算的偏差：实际 / 目标 − 1。",
    ),
    "column_flops_per_token": ("FLOPs/token", "FLOPs/token"),
    "column_flops_per_token_help": (
        "Of a forward pass; a multiply-add counts 2.",
        "前向计算量；一次乘加计 2。",
    ),
    "column_training_flops": ("FLOPs", "总 FLOPs"),
    "column_training_flops_help": (
        "Of the whole training: three times the forward, times tokens.",
        "整个训练的计算量：前向的三倍乘以 token 数。",
    ),
    "column_tokens": ("tokens", "token 数"),
    "column_tokens_help": ("Trained on.", "训练用的 token 数。"),
    "column_tokens_per_second": ("tokens/s", "每秒 token"),
    "column_tokens_per_second_help": (
        "In training, without validation, on the machine of the runs.",
        "训练速度（不含验证），取决于运行所在的机器。",
    ),
    "column_peak_memory_bytes": ("memory", "内存"),
    "column_peak_memory_bytes_help": (
        "The most that the process or device held.",
        "进程或设备的内存峰值。",
    ),
    "column_seconds": ("time", "用时"),
    "column_seconds_help": ("Of training steps.", "训练步骤的用时。"),
    "column_time_to_target": ("time to target", "达标用时"),
    "column_time_to_target_help": (
        "Training time until the baseline's final score was reached; – if it never was.",
        "达到基线最终得分所需的训练时间；– 表示从未达到。",
    ),
    "column_flops_to_target": ("FLOPs to target", "达标 FLOPs"),
    "column_flops_to_target_help": (
        "Training FLOPs until the baseline's final score was reached; – if it never was.",
        "达到基线最终得分所需的训练 FLOPs；– 表示从未达到。",
    ),
    "column_notes": ("notes", "备注"),
    "column_notes_help": (
        "What the score costs, and what is unusual.",
        "得分的代价，以及不寻常之处。",
    ),
    # verdicts and states
    "verdict_baseline": ("baseline", "基线"),
    "verdict_better": ("better", "更好"),
    "verdict_worse": ("worse", "更差"),
    "verdict_indistinguishable": ("indistinguishable", "无法区分"),
    "verdict_not_comparable": ("not comparable", "不可比"),
    "verdict_no_verdict": ("no verdict", "不作判定"),
    "verdict_baseline_help": (
        "What the others are compared with.",
        "其他变体的比较对象。",
    ),
    "verdict_better_help": (
        "The score is lower than the baseline's, and chance does not explain it (Holm-corrected "
        "p < 0.05).",
        "得分低于基线，且不能用偶然解释（Holm 校正后 p < 0.05）。",
    ),
    "verdict_worse_help": (
        "The score is higher than the baseline's, and chance does not explain it.",
        "得分高于基线，且不能用偶然解释。",
    ),
    "verdict_indistinguishable_help": (
        "The difference is within what seeds alone make. It does not say that there is none.",
        "差异在种子造成的波动之内；这并不说明没有差异。",
    ),
    "verdict_not_comparable_help": (
        "Other data, tokenizer, budget or size than the baseline: the numbers are shown, and not "
        "ranked.",
        "数据、分词器、预算或规模与基线不同：仅列出数字，不作排名。",
    ),
    "verdict_no_verdict_help": (
        "Too few seeds, or no finished runs: nothing can be said about noise.",
        "种子太少或没有完成的运行：无法估计噪声。",
    ),
    "status_ok": ("finished", "完成"),
    "status_running": ("running", "运行中"),
    "status_failed": ("failed", "失败"),
    "status_stopped": ("stopped", "已停止"),
    "status_lost": ("lost", "丢失"),
    "status_broken": ("unreadable", "不可读"),
    "status_missing": ("not begun", "未开始"),
    # facts of provenance
    "fact_mlpkit": ("mlpkit", "mlpkit"),
    "fact_git": ("git commit", "git 提交"),
    "fact_torch": ("torch", "torch"),
    "fact_python": ("Python", "Python"),
    "fact_computing": ("computing", "计算设备"),
    "fact_hardware": ("hardware", "硬件"),
    "fact_threads": ("threads", "线程数"),
    "fact_seeds": ("seeds", "种子"),
    "fact_data": ("data", "数据"),
    "fact_tokenizer": ("tokenizer", "分词器"),
    "fact_plugins": ("plugins", "插件"),
    "unknown": ("not recorded", "未记录"),
    "dirty": ("with changes", "有未提交的修改"),
}
