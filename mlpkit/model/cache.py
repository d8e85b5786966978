"""The keys and values of tokens already seen, so that each new token is computed once."""

from __future__ import annotations

from torch import Tensor


class CacheError(ValueError):
    """A cache that is full, or that holds another batch than the one it is given."""

    exit_code = 2


class LayerCache:
    """Keys and values of one layer, in room reserved when the first ones arrive.

    Args:
        max_length: Tokens per sequence that it can hold.
    """

    def __init__(self, *, max_length: int) -> None:
        self.max_length = max_length
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Stores new keys and values behind the old ones.

        Args:
            keys: (B, heads, S, D), already rotated.
            values: (B, heads, S, D).

        Returns:
            All keys and all values so far, (B, heads, length, D): views of the reserved room.

        Raises:
            CacheError: They do not fit, or differ in batch, heads, size, dtype or device from
                what is held. Nothing has been stored then.
        """
        end = self.length + keys.shape[2]
        if end > self.max_length:
            raise CacheError(
                f"the cache holds {self.length} of at most {self.max_length} tokens and "
                f"{keys.shape[2]} more do not fit; make one with max_length={end} or more"
            )
        if self._keys is None or self._values is None:
            room = (*keys.shape[:2], self.max_length, keys.shape[3])
            self._keys, self._values = keys.new_empty(room), values.new_empty(room)
        self._refuse_strangers(self._keys, keys)
        for held, new in ((self._keys, keys), (self._values, values)):
            held.narrow(2, self.length, keys.shape[2]).copy_(new)
        self.length = end
        return self._keys.narrow(2, 0, end), self._values.narrow(2, 0, end)  # (B, heads, length, D)

    @staticmethod
    def _refuse_strangers(held: Tensor, new: Tensor) -> None:
        # Without this a batch of one would be broadcast over the held batch, silently.
        same_shape = held.shape[:2] == new.shape[:2] and held.shape[3] == new.shape[3]
        if not same_shape or held.dtype != new.dtype or held.device != new.device:
            raise CacheError(
                f"the cache was started with keys {describe(held)} and is given "
                f"{describe(new)}; use a new KVCache for each batch of sequences"
            )


class KVCache:
    """Keys and values of every layer, for generation with ``Decoder(tokens, cache=cache)``.

    Room for ``max_length`` tokens is reserved per layer at first use:
    ``2 * B * num_key_value_heads * max_length * head_dim`` elements a layer. A cache serves one
    batch of sequences, of which all grow together, and only forward. It is meant for
    ``torch.inference_mode``: storing is in place, so a backward pass through more than one
    call fails, with torch's error about a tensor that was modified.

    Args:
        num_layers: Layers of the Decoder.
        max_length: Tokens per sequence, padding included, that it can hold; at least 1.

    Raises:
        CacheError: ``max_length`` is less than 1.
    """

    def __init__(self, *, num_layers: int, max_length: int) -> None:
        if max_length < 1:
            raise CacheError(f"max_length is {max_length}; a cache holds at least 1 token")
        self.max_length = max_length
        self.layers = [LayerCache(max_length=max_length) for _ in range(num_layers)]

    @property
    def length(self) -> int:
        """Tokens per sequence that it holds, padding included."""
        return self.layers[0].length if self.layers else 0


def describe(keys: Tensor) -> str:
    """Batch, heads, size, dtype and device in words, for messages."""
    batch, heads, _, size = keys.shape
    return f"(B={batch}, heads={heads}, head_dim={size}, {keys.dtype}, {keys.device})"
