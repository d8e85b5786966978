"""Run directories as training writes them, with chosen results: what a report is tested on."""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import math
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

import mlpkit

PROMPT = "def read(self, size=-1):\n"


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one variant turns out.

    Args:
        overrides: As typed, ``key=value``, without the seed.
        bpb: Its true final bits per byte.
        speed: Tokens per second.
        parameters: Of the model.
        active: Those of one token; None: all.
        status: What becomes of its runs.
        error: Of a failed one.
        match: Its record.
        extra: Further keys of result.json, or replacements.
    """

    overrides: tuple[str, ...]
    bpb: float = 1.5
    speed: float = 16000.0
    parameters: int = 820480
    active: int | None = None
    status: str = "ok"
    error: str = "NonFiniteLossError: at step 212 the loss is nan; the weights were not updated"
    match: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)


SWIGLU = Look(overrides=("ffn=swiglu",), bpb=1.512)
GATED = Look(overrides=("ffn=gated", "activation=gelu"), bpb=1.511, speed=15800.0)
NAIVE = Look(overrides=("ffn=naive",), bpb=1.561, speed=17500.0, parameters=820224)
MOE = Look(overrides=("ffn=moe",), bpb=1.452, speed=9900.0, parameters=2887000, active=822528)
FAILING = Look(overrides=("ffn=moe", "training.learning_rate=0.3"), status="failed")


@functools.cache
def base_config() -> dict[str, Any]:
    """The default configuration as config.yaml has it."""
    config: dict[str, Any] = OmegaConf.to_container(mlpkit.compose([]), resolve=True)
    return config


def config_for(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The default configuration with overrides, put together without Hydra for speed."""
    config = copy.deepcopy(base_config())
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key == "ffn":
            config["ffn"] = {"name": value, "activation": None, "intermediate_size": None}
            if value == "moe":
                config["ffn"] |= {"num_experts": 8, "num_experts_per_tok": 2}
            continue
        *path, last = key.replace("/", ".").split(".")
        node = config
        for part in path:
            node = node.setdefault(part, {})
        try:
            node[last] = yaml.safe_load(value)
        except yaml.YAMLError:  # Hydra reads more, such as unquoted text
            node[last] = value
    return config


def write_run(folder: Path, look: Look, *, seed: int = 0, noise: float = 0.003) -> float:
    """Writes one run directory.

    Args:
        folder: The directory; it is made.
        look: How it turns out.
        seed: Its seed, which shifts all variants alike.
        noise: Standard deviation of what the seed does to each alone.

    Returns:
        Its final bits per byte.
    """
    folder.mkdir(parents=True)
    draw = random.Random(f"{look.overrides} {seed}")
    final = look.bpb + 0.004 * random.Random(seed).gauss(0, 1) + draw.gauss(0, noise)
    overrides = (*look.overrides, f"seed={seed}")
    config = config_for(overrides)
    training = config["training"]
    per_step = training["batch_size"] * training["sequence_length"]
    flops = 2 * (look.active or look.parameters)
    lines = list(_lines(training, look, final, draw))
    tokens = training["max_steps"] * per_step
    metrics = {
        "val_loss": final * math.log(2),
        "val_bpb": final,
        "val_perplexity": 2**final,
        "tokens": tokens,
        "training_flops": tokens * 3 * flops,
        "tokens_per_second": look.speed * (1 + 0.01 * draw.random()),
        "training_seconds": round(tokens / look.speed, 3),
        "peak_memory_bytes": 310_000_000 + 40 * look.parameters,
    }
    result = {
        "status": look.status,
        "pid": os.getpid(),
        "started": f"2026-11-29T21:{seed:02}:00+00:00",
        "overrides": list(overrides),
        "ffn": config["ffn"]["name"],
        "seed": seed,
        "mlpkit": mlpkit.__version__,
        "torch": "2.13.0+cpu",
        "python": "3.11.2",
        "computing": "cpu, bfloat16 (the CPU has bf16 in hardware: amx_bf16)",
        "threads": 2,
        "plugins": {},
        "git": {"commit": "0994535f00d8c0ffee00d8c0ffee00d8c0ffee00", "dirty": False},
        "data": {"name": "pystdlib", "fingerprint": "5e1f" * 4, "tokenizer": "bytes"},
        "model": {
            "parameters": look.parameters,
            "active_parameters": look.active or look.parameters,
            "ffn_parameters": int(0.72 * look.parameters),
            "flops_per_token": flops,
            "training_flops_per_token": 3 * flops,
        },
        "match": look.match,
        "step": training["max_steps"],
        "seconds": tokens / look.speed + 9.0,
    }
    if look.status == "ok":
        result["metrics"] = metrics
        (folder / "sample.txt").write_text(f"{PROMPT}    return self._{draw.choice('abcdef')}\n")
    else:
        lines = lines[: len(lines) // 3]
        result["step"] = lines[-1]["step"]
    if look.status == "failed":
        result["error"] = look.error
        result["log_tail"] = [f"step {i}/1000  loss {5 - i / 100:.4f}" for i in range(12)]
    result |= look.extra
    (folder / "result.json").write_text(json.dumps(result, indent=2))
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return final


def _lines(training: dict[str, Any], look: Look, final: float, draw: random.Random) -> Any:
    """The lines of metrics.jsonl: losses that fall like a power of the step."""
    steps, per_step = training["max_steps"], training["batch_size"] * training["sequence_length"]

    def bpb(step: int) -> float:
        share = step / steps
        return final + (8.2 - final) * (1 - share) * math.exp(-14 * share**0.5)

    for step in range(steps + 1):
        place = {"step": step, "tokens": step * per_step}
        place["seconds"] = round(step * per_step / look.speed, 3)
        if step and (step % training["log_every"] == 0 or step == 1):
            loss = math.log(2) * bpb(step) + draw.gauss(0, 0.03)
            yield {**place, "loss": loss, "learning_rate": 3e-3, "grad_norm": 0.6}
        if step % training["eval_every"] == 0 or step == steps:
            yield {**place, "val_loss": math.log(2) * bpb(step), "val_bpb": bpb(step)}


def write_sweep(
    root: Path,
    looks: tuple[Look, ...] = (SWIGLU, GATED, NAIVE, MOE),
    *,
    seeds: tuple[int, ...] = (0, 1, 2),
    noise: float = 0.003,
    baseline: str | None = "swiglu",
) -> Path:
    """Writes the jobs of a sweep and its sweep.json below root/multirun; returns the latter."""
    jobs = []
    for look in looks:
        for seed in seeds:
            overrides = [*look.overrides, f"seed={seed}"]
            job = hashlib.sha256(" ".join(overrides).encode()).hexdigest()[:12]
            write_run(root / "multirun" / job, look, seed=seed, noise=noise)
            jobs.append({"id": job, "overrides": overrides})
    path = root / "multirun" / "sweeps" / "0123456789ab" / "sweep.json"
    path.parent.mkdir(parents=True)
    command = f"mlpkit train -m seed={','.join(map(str, seeds))}"
    path.write_text(json.dumps({"command": command, "jobs": jobs, "baseline": baseline}))
    return path
