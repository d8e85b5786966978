"""Record: what the routers of a model decided, collected through the taps of its MoE layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from mlpkit.routing.taps import Entry, Tap, taps_of
from mlpkit.routing.terms import POOLED, Rows, Term, evaluate, one_term, terms_of, weighted
from mlpkit.routing.triples import Routing


class ReplayError(ValueError):
    """A routing that cannot be replayed."""

    exit_code = 2


class Record:
    """What the layers of one model routed while the record was open.

    ``losses``, ``terms``, ``routings`` and ``replay`` speak of the forward since they were last
    asked; asked again before another forward they answer the same. A forward in which a layer
    runs twice, or two forwards before one backward, count each call and take the mean. Counts
    of tokens go on until ``reset``.

    Args:
        layers: Qualified module name to a module with a list ``taps`` and, where balance terms
            are configured, a mapping ``balance`` of name to ``Term`` (or bias rule).
    """

    def __init__(self, layers: Mapping[str, nn.Module]) -> None:
        self.layers = dict(layers)
        self._taps = {name: Tap(layer) for name, layer in self.layers.items()}
        self._entries: dict[str, list[Entry]] = {}
        self._mask: Tensor | None = None

    def open(self) -> None:
        """Hangs the taps into the layers."""
        for name, layer in self.layers.items():
            taps_of(layer).append(self._taps[name])

    def close(self) -> None:
        """Takes the taps out again; what was recorded stays readable."""
        for name, layer in self.layers.items():
            taps_of(layer).remove(self._taps[name])

    @property
    def mask(self) -> Tensor | None:
        """Which tokens of the coming forwards are real, in the leading shape; None: all.

        Set it before a forward whose batch has padding: neither the counts, by which the
        selection bias moves, nor the terms then see the padding.
        """
        return self._mask

    @mask.setter
    def mask(self, mask: Tensor | None) -> None:
        self._mask = mask
        for tap in self._taps.values():
            tap.mask = mask

    def losses(self, mask: Tensor | None = None) -> dict[str, Tensor]:
        """What is added to the task loss.

        Args:
            mask: The leading shape of the model's input, True (or 1) for a real token; padding
                weighs nothing in any term. None: the record's own ``mask``.

        Returns:
            Term name to scalar: coefficient times term, mean over the layers that have it (or
            their sum, or pooled, where the term says so). A coefficient of 0 gives no entry.

        Raises:
            NoRouterGradientError: A layer in training would get no gradient from its term.
            MaskShapeError: The mask does not have one value per token.
            LayersDifferError: A pooled term has different coefficients or numbers of experts.
        """
        return {name: weighted(rows) for name, rows in self._values(mask).items()}

    def terms(self, mask: Tensor | None = None) -> dict[str, dict[str, Tensor]]:
        """The raw values, without coefficients.

        Args:
            mask: As in ``losses``.

        Returns:
            Term name to layer name to scalar; a pooled term has the one layer "pooled".

        Raises:
            NoRouterGradientError: As in ``losses``; so are the others.
            MaskShapeError: The mask does not have one value per token.
            LayersDifferError: A pooled term cannot join the layers.
        """
        return {
            name: {layer: value for layer, (_, value) in rows.items()}
            for name, rows in self._values(mask).items()
        }

    def routings(self) -> dict[str, list[Routing]]:
        """Layer name to the routings of its calls in the last forward."""
        return {
            name: [entry.routing for entry in entries] for name, entries in self._read().items()
        }

    def replay(self) -> dict[str, Tensor]:
        """The choices of the last forward, for ``mlpkit.routers.replay_routing``.

        Returns:
            Layer name to (T, K) int64.

        Raises:
            ReplayError: A layer's tokens do not all have the same number of experts.
        """
        choices = {}
        for name, routings in self.routings().items():
            last = routings[-1]
            if last.num_experts_per_tok is None:
                raise ReplayError(
                    f"layer {name!r} gave its tokens different numbers of experts; only "
                    "token-choice routing without dropping can be replayed"
                )
            choices[name] = last.expert.view(-1, last.num_experts_per_tok)  # (T, K)
        return choices

    def load(self, training: bool | None = None) -> dict[str, Tensor]:
        """How many tokens each expert got since the record opened or was reset.

        Args:
            training: True: in training mode only; False: in evaluation only; None: both.

        Returns:
            Layer name to (E,) int64, for the layers that ran.
        """
        loads = {}
        for name, tap in self._taps.items():
            counted = {True: tap.train_load, False: tap.eval_load}
            found = [
                counts
                for mode, counts in counted.items()
                if counts is not None and training in (None, mode)
            ]
            if found:
                loads[name] = torch.stack(found).sum(0)
        return loads

    def take_step_load(self) -> dict[str, Tensor]:
        """Training counts since the last call of this method, for the bias update of one step.

        Returns:
            Layer name to (E,) int64, for the layers that ran; asked twice, the second is empty.
        """
        loads = {
            name: tap.step_load for name, tap in self._taps.items() if tap.step_load is not None
        }
        for tap in self._taps.values():
            tap.step_load = None
        return loads

    def restore(self, load: Mapping[str, Tensor]) -> None:
        """Goes on counting from what ``load(training=True)`` gave before, as after a resume.

        Args:
            load: Layer name to (E,) int64 on the layer's device.
        """
        for name, counts in load.items():
            self._taps[name].train_load = counts

    def reset(self) -> None:
        """Starts the counts of ``load`` again; the window of the bias update is its own."""
        for tap in self._taps.values():
            tap.train_load = tap.eval_load = None

    def _read(self) -> dict[str, list[Entry]]:
        fresh = {name: tap.read() for name, tap in self._taps.items()}
        if any(fresh.values()):
            self._entries = {name: entries for name, entries in fresh.items() if entries}
        return self._entries

    def _values(self, mask: Tensor | None) -> dict[str, Rows]:
        """Every configured term on every layer that has it, mean over the layer's calls."""
        mask = self.mask if mask is None else mask
        values: dict[str, Rows] = {}
        pooled: dict[str, list[tuple[Term, list[Entry]]]] = {}
        for layer, entries in self._read().items():
            for name, term in terms_of(self.layers[layer]).items():
                if term.over_layers == POOLED:
                    pooled.setdefault(name, []).append((term, entries))
                    continue
                calls = [evaluate(name, layer, term, [entry], mask) for entry in entries]
                values.setdefault(name, {})[layer] = (term, torch.stack(calls).mean())
        for name, parts in pooled.items():
            term = one_term(name, [part[0] for part in parts])
            together = [entry for _, entries in parts for entry in entries]
            values[name] = {POOLED: (term, evaluate(name, POOLED, term, together, mask))}
        return values


@contextmanager
def record_routing(module: nn.Module) -> Iterator[Record]:
    """Records what every MoE inside a module routes while the block runs.

    Several records and several models may be open at once; each sees its own. It makes no
    difference whether the model is compiled before or after. Compiling a whole model with
    checkpoints *inside* it needs
    ``torch._dynamo.config.skip_fwd_side_effects_in_bwd_under_checkpoint = True``, or it stops
    with an error that says so.

    Args:
        module: A module; its submodules with a list ``taps`` are recorded under their
            qualified names (without the names that compile and checkpoint wrappers add).

    Yields:
        The record; it stays readable after the block.
    """
    record = Record(
        {
            plain_name(name): layer
            for name, layer in module.named_modules()
            if isinstance(vars(layer).get("taps"), list)
        }
    )
    record.open()
    try:
        yield record
    finally:
        record.close()


def plain_name(name: str) -> str:
    """A qualified name as it is without wrappers."""
    wrappers = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")
    return ".".join(part for part in name.split(".") if part not in wrappers)
