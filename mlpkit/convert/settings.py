"""A config.json read with care: every value typed, what would change results refused by name."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from mlpkit.convert.folders import ConversionError
from mlpkit.registry import suggestion

# Hugging Face's words for activations and ours; those with parameters of their own are left out.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_10": "gelu_10",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "hardswish": "hardswish",
    "laplace": "laplace",
    "leaky_relu": "leaky_relu",
    "linear": "identity",
    "mish": "mish",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu2",
    "relu6": "relu6",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "sqrtsoftplus": "sqrt_softplus",
    "swish": "silu",
    "tanh": "tanh",
}
# The first of several words for one activation is the one that is written.
HF_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
MOST = 2**31  # a size beyond it is no size


class Settings:
    """The values of a ``config.json``, and what its class takes where it says nothing.

    Args:
        values: The object in it.
        defaults: The class's own values.
        where: What to call it in messages.
        allowed: What may differ from the original all the same: "sliding_window".
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any],
        where: str,
        allowed: Collection[str] = (),
    ) -> None:
        self.values, self.where, self.allowed = {**defaults, **values}, where, allowed
        self._given = frozenset(values)

    def get(self, *keys: str) -> Any:
        """The value of the first of several spellings that says something."""
        # what was said in any spelling comes before what the class takes by itself
        ordered = sorted(keys, key=lambda key: key not in self._given)
        found = (self.values[key] for key in ordered if self.values.get(key) is not None)
        return next(found, None)

    def whole(self, *keys: str, minimum: int = 1) -> int:
        """A whole number.

        Raises:
            ConversionError: It is none, or out of range.
        """
        value = self.get(*keys)
        if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value < MOST:
            raise ConversionError(
                f"{self.where}: {keys[0]} is {value!r}; it is a whole number of at least {minimum}"
            )
        return value

    def number(self, *keys: str) -> float:
        """A finite number above 0.

        Raises:
            ConversionError: It is none.
        """
        value = self.get(*keys)
        if (
            not isinstance(value, int | float)
            or isinstance(value, bool)
            or not 0 < value < math.inf
        ):
            raise ConversionError(f"{self.where}: {keys[0]} is {value!r}; it is a number above 0")
        return float(value)

    def flag(self, key: str) -> bool:
        """True or false; absent is false.

        Raises:
            ConversionError: It is neither.
        """
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise ConversionError(f"{self.where}: {key} is {value!r}; it is true or false")
        return bool(value)

    def activation(self) -> str:
        """Our name of ``hidden_act``.

        Raises:
            ConversionError: It is none that mlpkit computes in the same way.
        """
        said = self.get("hidden_act", "hidden_activation")
        if not isinstance(said, str) or said not in ACTIVATIONS:
            raise ConversionError(
                f"{self.where}: hidden_act is {said!r}{suggestion(str(said), ACTIVATIONS)} "
                f"(read are: {', '.join(ACTIVATIONS)})"
            )
        return ACTIVATIONS[said]

    def rope_theta(self) -> float:
        """The base of plain rotary positions, from either generation of spellings.

        Raises:
            ConversionError: The positions are scaled, or turn a part of a head alone.
        """
        said = self.get("rope_parameters", "rope_scaling") or {}
        if not isinstance(said, Mapping):
            raise ConversionError(f"{self.where}: rope_parameters is {said!r}; it is an object")
        kind = said.get("rope_type", said.get("type", "default"))
        if kind != "default" or any(isinstance(value, Mapping) for value in said.values()):
            shown = kind if kind != "default" else "one for each kind of layer"
            raise ConversionError(
                f"{self.where}: its rotary positions are scaled ({shown!r}), and mlpkit has plain "
                "ones: every logit would differ"
            )
        part = said.get("partial_rotary_factor", self.get("partial_rotary_factor"))
        if part not in (None, 1, 1.0):
            raise ConversionError(
                f"{self.where}: partial_rotary_factor is {part!r}: only a part of each head turns "
                "there; mlpkit turns all of it"
            )
        own = {"rope_theta": said["rope_theta"]} if "rope_theta" in said else {}
        return Settings({**self.values, **own}, defaults={}, where=self.where).number("rope_theta")

    def refuse_sliding_window(self) -> None:
        """Refuses a window that a text of the model's length would not fit in.

        Raises:
            ConversionError: There is such a window, and it is not allowed.
        """
        window = self.get("sliding_window")
        used = self.values.get("use_sliding_window", True)
        longest = self.get("max_position_embeddings")
        if not window or not used or "sliding_window" in self.allowed:
            return
        if isinstance(window, int) and isinstance(longest, int) and window >= longest:
            return
        raise ConversionError(
            f"{self.where}: sliding_window is {window!r}: a token sees no more than so many before "
            "it, and in mlpkit all of them, so that longer texts come out differently; with "
            "--allow sliding_window it is imported all the same"
        )

    def refuse(self, key: str, *neutral: Any) -> None:
        """Refuses an option that mlpkit does not have, unless its value changes nothing.

        Raises:
            ConversionError: It changes results.
        """
        value = self.get(key)
        if value is not None and value not in neutral:
            raise ConversionError(
                f"{self.where}: {key} is {value!r}, which changes what the model computes, and "
                "mlpkit does not have it"
            )
