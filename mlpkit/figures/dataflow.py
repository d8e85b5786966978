"""What flows where in a module: traced where that works, else its parts in order."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from mlpkit.activations import Activation
from mlpkit.figures.labels import Words
from mlpkit.plugins import registries

# Calls that only look at a tensor in another way; they compute nothing worth a box.
VIEWS = {
    *("contiguous", "to", "float", "type", "type_as", "view", "view_as", "reshape", "flatten"),
    *("unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "getitem", "clone", "detach"),
}
ABOUT = {"size", "dim", "numel", "getattr"}  # facts about a tensor, not the tensor
CIRCLES = {
    "mul": "×",
    "imul": "×",
    "matmul": "@",
    "add": "+",
    "iadd": "+",
    "sub": "−",
    "truediv": "÷",
    "div": "÷",
}


@dataclass(frozen=True, kw_only=True)
class Node:
    """One box or circle of a diagram.

    Args:
        name: Unique in its graph.
        kind: "input", "output", "linear", "activation", "router", "circle", "plain" (any other
            module, operation or parameter) or "card" (a diagram within).
        title: Its first line.
        details: Further lines.
        sources: Names of the nodes that it takes values from.
        sizes: A linear's input and output width.
        inner: The diagram within a card.
        copies: How many of the card there are.
        hints: Names of nodes that steer it without giving it values: dashed arrows.
        weights: Name of the source whose arrow carries the router's weights; empty if none.
    """

    name: str
    kind: str
    title: str
    details: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    sizes: tuple[int, int] | None = None
    inner: Graph | None = None
    copies: int = 1
    hints: tuple[str, ...] = ()
    weights: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """The nodes of a diagram, each after its sources.

    Args:
        nodes: From input to output.
        traced: Whether the sources are known; without them the nodes are parts in order.
    """

    nodes: tuple[Node, ...]
    traced: bool = True


class _Tracer(fx.Tracer):
    """Stops at every child but plain sequences: a child is one box or one card."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Sequential)


def trace(module: nn.Module, hidden_size: int, text: Words) -> Graph:
    """The diagram of a module (..., H) -> (..., H).

    Args:
        module: The module; it is left as it is.
        hidden_size: H.
        text: The language of the labels.
    """
    try:
        graph = _Tracer().trace(module)
    except Exception:  # tracing runs the author's code on stand-ins, and that may fail in any way
        return _parts(module, text)
    shapes = _shapes(module, graph, hidden_size)
    nodes = _live(_Reader(module, shapes, text).nodes(graph))
    return Graph(nodes=nodes)


class _Reader:
    """Turns the traced calls into nodes, leaving out those that compute nothing."""

    def __init__(self, module: nn.Module, shapes: dict[str, tuple[int, ...]], text: Words) -> None:
        self.module, self.shapes, self.text = module, shapes, text
        self.stands_for: dict[str, tuple[str, ...]] = {}

    def nodes(self, graph: fx.Graph) -> list[Node]:
        made = []
        for call in graph.nodes:
            node = self.read(call)
            if node is not None:
                self.stands_for[call.name] = (node.name,)
                made.append(node)
        return made

    def read(self, call: fx.Node) -> Node | None:
        """The node of a call; None where it only passes a value on, or is none."""
        sources = self.sources(call)
        if call.op == "placeholder":
            self.stands_for[call.name] = ()
            first = call.prev.op == "root"  # what follows has a default
            return Node(name=call.name, kind="input", title=self.text.input) if first else None
        if call.op == "output":
            return Node(name=call.name, kind="output", title=self.text.output, sources=sources)
        if call.op == "get_attr":
            return _tensor(call.name, str(call.target), _attribute(self.module, str(call.target)))
        name = _called(call)
        passes = call.op != "call_module" and (name in VIEWS or name in ABOUT)
        child = self.module.get_submodule(str(call.target)) if call.op == "call_module" else None
        if passes or isinstance(child, nn.Identity) or _idle_dropout(child):
            self.stands_for[call.name] = () if name in ABOUT else sources
            return None
        if child is not None:
            node = child_node(str(call.target), child, self.text)
            return replace(node, name=call.name, sources=sources)
        return self.operation(call, name, sources)

    def operation(self, call: fx.Node, name: str, sources: tuple[str, ...]) -> Node:
        """The node of a function's or method's call."""
        tensors = [a for a in call.args if isinstance(a, fx.Node)]
        if name in CIRCLES and len(tensors) == 2 and sources:
            return Node(name=call.name, kind="circle", title=CIRCLES[name], sources=sources)
        constants = [a for a in call.args if isinstance(a, int | float)]
        if name in CIRCLES and len(constants) == 1:
            title = f"{CIRCLES[name]} {constants[0]:g}"
            return Node(name=call.name, kind="plain", title=title, sources=sources)
        known = name in registries().activation
        shape = self.shapes.get(call.name, ())
        return Node(
            name=call.name,
            kind="activation" if known else "plain",
            title=name,
            details=(f"(…, {shape[-1]})",) if shape and not known else (),
            sources=sources,
        )

    def sources(self, call: fx.Node) -> tuple[str, ...]:
        """The nodes whose values a call takes, each once."""
        found = [s for used in call.all_input_nodes for s in self.stands_for.get(used.name, ())]
        return tuple(dict.fromkeys(found))


def child_node(path: str, child: nn.Module, text: Words) -> Node:
    """The box or card of a module within a module.

    Args:
        path: Its name there.
        child: The module.
        text: The language of the labels.
    """
    if isinstance(child, nn.Linear):
        return linear_node(path, child)
    if isinstance(child, Activation):
        return Node(name=path, kind="activation", title=child.name)
    title = path.rpartition(".")[2]
    if any(child.children()):
        inner = _parts(child, text)
        return Node(name=path, kind="card", title=title, inner=inner)
    module_name = type(child).__module__
    if module_name.startswith(("torch.nn.modules.activation", "mlpkit.activations")) or (
        title == "activation"
    ):
        return Node(name=path, kind="activation", title=type(child).__name__)
    rate = getattr(child, "p", None)
    detail = f"{type(child).__name__}" + (f" p = {rate:g}" if isinstance(rate, float) else "")
    shapes = [f"{key} {_sizes(value)}" for key, value in child.named_parameters(recurse=False)]
    return Node(name=path, kind="plain", title=title, details=(detail, *shapes[:2]))


def linear_node(path: str, linear: nn.Linear) -> Node:
    """The box of a linear layer: its name, and its widths."""
    widths = (linear.in_features, linear.out_features)
    bias = "" if linear.bias is None else " + b"
    return Node(
        name=path,
        kind="linear",
        title=path.rpartition(".")[2],
        details=(f"{widths[0]} → {widths[1]}{bias}",),
        sizes=widths,
    )


def _parts(module: nn.Module, text: Words) -> Graph:
    """The parts of a module that cannot be traced: parameters and children in their order."""
    tensors = [_tensor(key, key, value) for key, value in module.named_parameters(recurse=False)]
    parts = [child_node(name, child, text) for name, child in module.named_children()]
    return Graph(nodes=(*tensors, *parts), traced=False)


def _tensor(name: str, path: str, value: Any) -> Node:
    details = (_sizes(value),) if isinstance(value, Tensor) else ()
    return Node(name=name, kind="plain", title=path.rpartition(".")[2], details=details)


def _sizes(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "1"


def _attribute(module: nn.Module, path: str) -> Any:
    holder, _, name = path.rpartition(".")
    return getattr(module.get_submodule(holder), name)


def _called(call: fx.Node) -> str:
    name = call.target if isinstance(call.target, str) else getattr(call.target, "__name__", "")
    return name.strip("_")


def _idle_dropout(child: nn.Module | None) -> bool:
    return isinstance(child, nn.Dropout) and child.p == 0


def _live(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes from which the output is reached, and the input."""
    needed = {node.name for node in nodes if node.kind in ("input", "output")}
    for node in reversed(nodes):
        if node.name in needed:
            needed.update(node.sources)
    return tuple(node for node in nodes if node.name in needed)


class _Shapes(fx.Interpreter):
    """Runs a traced graph and keeps the shape of each tensor."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        self.shapes: dict[str, tuple[int, ...]] = {}

    def run_node(self, n: fx.Node) -> Any:
        value = super().run_node(n)
        if isinstance(value, Tensor):
            self.shapes[n.name] = tuple(value.shape)
        return value


def _shapes(module: nn.Module, graph: fx.Graph, hidden_size: int) -> dict[str, tuple[int, ...]]:
    """The shape of each call's tensor for an input (1, 4, H); empty where it cannot be run."""
    try:
        hollow = copy.deepcopy(module).to("meta")
        reader = _Shapes(fx.GraphModule(hollow, graph))
        reader.run(torch.empty(1, 4, hidden_size, device="meta"))
    except Exception:  # as with tracing; the shapes are a nicety
        return {}
    return reader.shapes
