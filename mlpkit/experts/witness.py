"""The witness: a backend is used for an FFN only after it equalled the loop on a small example."""

from __future__ import annotations

import copy
import math
from collections.abc import Hashable

import torch
from torch import Tensor, nn

from mlpkit.experts.backends import Backend, Loop, Tensors, UnfitExpertError
from mlpkit.experts.copies import HOOKS, INTERNAL

COUNTS = (3, 0, 5)
# Faults are of the size of the values; float64 rounding is not, even where the FFN computes a
# part in float32.
TOLERANCE = 1e-6
LARGEST = 1 << 24  # tensor elements of an expert; a witness of more would take seconds and GBs
UNTRIED = 1 << 28  # and of this many is not tried at all
_verdicts: dict[Hashable, str] = {}


def verify(backend: type[Backend], template: nn.Module, tensors: Tensors) -> str:
    """Why a backend must not run an FFN, or "" when it equals the loop.

    Three experts with random weights and 3, 0 and 5 rows must give the loop's output and every
    gradient of it, in training and in evaluation. The answer is kept per class and options.

    Args:
        backend: The backend's class.
        template: The FFN whose code all experts share.
        tensors: The stacks, from which shapes and the buffers' values are taken.
    """
    key = _fingerprint(backend, template, tensors)
    if key is None:
        return _try(backend, template, tensors)
    if key not in _verdicts:
        _verdicts[key] = _try(backend, template, tensors)
    return _verdicts[key]


def _fingerprint(backend: type[Backend], template: nn.Module, tensors: Tensors) -> Hashable | None:
    """What decides the verdict, or None when a plain attribute cannot be part of a key."""
    if any(tensors[name].numel() for name, _ in template.named_buffers()):
        return None
    parts: list[Hashable] = [backend]
    for name, module in template.named_modules():
        plain = tuple((k, v) for k, v in vars(module).items() if k not in INTERNAL)
        hooks = tuple(hook for kind in HOOKS for hook in getattr(module, kind).values())
        parts.append((name, type(module), plain, hooks))
    first: dict[int, int] = {}
    for place, (name, tensor) in enumerate(tensors.items()):
        tie = first.setdefault(id(tensor), place)
        parts.append((name, tuple(tensor.shape[1:]), tie))
    try:
        hash(key := tuple(parts))
    except TypeError:
        return None
    return key


def _try(backend: type[Backend], template: nn.Module, tensors: Tensors) -> str:
    try:
        backend(copy.deepcopy(template))
    except UnfitExpertError as error:
        return str(error)
    # A narrow copy costs nothing and needs no memory for matrices of the real width; code that
    # knows its width by heart fails there, and then the real width decides.
    divisor, elements = _divisor(template), sum(t.shape[1:].numel() for t in tensors.values())
    if elements // divisor**2 > UNTRIED:
        return f"an expert of {elements:,} numbers is too large to be tried"
    if divisor > 1:
        reason = _compare(backend, *_narrow(template, divisor))
        if not reason or elements > LARGEST:
            return reason
    return _compare(backend, *_sample(template, tensors))


def _divisor(template: nn.Module) -> int:
    """By how much every linear can be narrowed, all ratios kept and no width below 4; else 1."""
    modules = [m for m in template.modules() if m._parameters or m._buffers]
    if not modules or any(type(m) is not nn.Linear for m in modules):
        return 1
    widths = [n for m in modules if isinstance(m, nn.Linear) for n in m.weight.shape]
    common, limit = math.gcd(*widths), min(widths) // 4
    return max((d for d in range(1, min(common, limit) + 1) if common % d == 0), default=1)


def _sample(template: nn.Module, tensors: Tensors) -> tuple[nn.Module, dict[str, Tensor]]:
    """The FFN's code, and three experts of its real width."""
    code = copy.deepcopy(template)
    parameters = dict(code.named_parameters(remove_duplicate=False))
    rng = torch.Generator().manual_seed(0)
    known: dict[int, Tensor] = {}
    stack = {}
    for name, tensor in tensors.items():
        if id(tensor) not in known:
            known[id(tensor)] = (
                _random(tensor.shape[1:], rng) if name in parameters else _three(tensor)
            )
        stack[name] = known[id(tensor)]
    return code, stack


def _narrow(template: nn.Module, divisor: int) -> tuple[nn.Module, dict[str, Tensor]]:
    code = copy.deepcopy(template)
    rng = torch.Generator().manual_seed(0)
    known: dict[int, tuple[nn.Parameter, Tensor]] = {}
    stack = {}
    for name, module in code.named_modules():
        if not isinstance(module, nn.Linear):
            continue
        module.in_features //= divisor
        module.out_features //= divisor
        for key, old in module._parameters.items():
            if old is None:
                continue
            shape = torch.Size(n // divisor for n in old.shape)
            if id(old) not in known:
                placeholder = nn.Parameter(torch.empty(shape, device="meta"))
                known[id(old)] = placeholder, _random(shape, rng)
            module._parameters[key], stack[f"{name}.{key}"] = known[id(old)]
    return code, stack


def _random(shape: torch.Size, rng: torch.Generator) -> Tensor:
    """Three values as after some training: vectors around 1, matrices that keep the scale."""
    values = torch.randn(3, *shape, generator=rng, dtype=torch.float64, device="cpu")
    return values / shape[-1] ** 0.5 if len(shape) > 1 else 1 + values / 4


def _three(buffer: Tensor) -> Tensor:
    """The buffers of three experts; their values mean something to the FFN, so none is drawn."""
    if buffer.is_meta:
        return torch.zeros(3, *buffer.shape[1:], dtype=buffer.dtype, device="cpu")
    chosen = [min(i, len(buffer) - 1) for i in range(3)]
    values = buffer.detach()[chosen].cpu()
    return values.double() if values.is_floating_point() else values


def _compare(backend: type[Backend], code: nn.Module, stack: dict[str, Tensor]) -> str:
    for module in code.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0  # two backends draw different masks, and both are right
    try:
        width = _width(code, stack)
        for mode in (False, True):
            rows = _rows(width, seed=int(mode))
            want = _run(Loop, code, stack, rows, mode)
            got = _run(backend, code, stack, rows, mode)
            for name, value in want.items():
                if not _close(value, got[name]):
                    return f"the witness found another {name} than the loop's"
    except Exception as error:  # whatever the author's code raises is the reason
        first = str(error).partition("\n")[0]  # an error may say nothing
        return f"the witness raised {type(error).__name__}: {first[:120]}"
    return ""


def _width(code: nn.Module, stack: dict[str, Tensor]) -> int:
    """The FFN's H: a size of one of its tensors that it takes and gives back."""
    sizes = dict.fromkeys(n for t in stack.values() for n in reversed(t.shape[1:]))
    error: Exception = ValueError("the FFN does not keep the width of its input")
    for width in sizes or (8,):
        rows = _rows(width, seed=0)
        try:
            if _run(Loop, code, stack, rows, False)["output"].shape == rows.shape:
                return width
        except Exception as raised:  # most sizes are not its width
            error = raised
    raise error


def _rows(width: int, seed: int) -> Tensor:
    """Rows of growing size, so that code which looks across rows is seen to."""
    rng = torch.Generator().manual_seed(seed)
    rows = torch.randn(sum(COUNTS), width, generator=rng, dtype=torch.float64, device="cpu")
    return rows * torch.linspace(0.5, 4, len(rows), dtype=torch.float64, device="cpu").unsqueeze(1)


def _run(
    backend: type[Backend], code: nn.Module, stack: dict[str, Tensor], rows: Tensor, mode: bool
) -> dict[str, Tensor]:
    """Output and gradients of one backend; leaves the process's random state as it was."""
    leaves: dict[int, Tensor] = {}
    for tensor in stack.values():
        leaves.setdefault(id(tensor), _leaf(tensor))
    rows = _leaf(rows)
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        torch.device("cpu"),
        torch.autocast("cpu", enabled=False),
    ):
        torch.manual_seed(0)
        runner = backend(copy.deepcopy(code))
        runner.train(mode)
        named = {name: leaves[id(tensor)] for name, tensor in stack.items()}
        out = runner(named, rows, torch.tensor(COUNTS))
        torch.autograd.backward((out * torch.linspace(0.5, 1.5, out.numel()).view_as(out)).sum())
    gradients = {f"gradient of {n}": t.grad for n, t in named.items() if t.grad is not None}
    assert rows.grad is not None or not out.requires_grad
    inner = {} if rows.grad is None else {"gradient of the input": rows.grad}
    return {"output": out.detach(), **inner, **gradients}


def _leaf(tensor: Tensor) -> Tensor:
    with torch.inference_mode(False):
        return tensor.clone().requires_grad_(tensor.is_floating_point())


def _close(want: Tensor, got: Tensor) -> bool:
    return want.shape == got.shape and torch.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)
