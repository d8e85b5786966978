"""The decoder and the data of a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from omegaconf import DictConfig

from mlpkit.build.ffns import assemble_ffn
from mlpkit.build.parts import BuildError, Component, construct, plain, seeded, split
from mlpkit.compose import check, compose
from mlpkit.configs.data import DataConfig
from mlpkit.data import (
    Dataset,
    Source,
    Tokenizer,
    bpe_vocab_size,
    build_tokenizer,
    load_data,
    trained_bpe,
)
from mlpkit.layers import slot_ffns, slots_by_layer
from mlpkit.model import Attention, Block, Decoder
from mlpkit.plugins import registries
from mlpkit.sizing import check_heads


def build_model(
    config: DictConfig | Sequence[str] = (), *, tokenizer: Tokenizer | None = None
) -> Decoder:
    """The decoder of a configuration, with initial values from its seed.

    Every part draws from a generator seeded by (seed, the part's name), so that two variants
    have equal initial values wherever they have equal parts.

    Args:
        config: A composed configuration, or overrides for ``compose``.
        tokenizer: The tokenizer whose vocabulary it has; None: the configuration's.

    Raises:
        ConfigError: The configuration is wrong.
        BuildError: A part refuses its options.
    """
    if isinstance(config, DictConfig):
        check(config)
    else:
        config = compose(list(config))
    tokenizer = tokenizer or tokenizer_of(config)
    model, seed = config.model, config.seed
    size = check_heads(
        hidden_size=model.hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_key_value_heads=model.num_key_value_heads,
        head_dim=model.head_dim,
    )
    ffns = {slot: plain(ffn) for slot, ffn in slot_ffns(config).items()}
    blocks = [
        _build_block(config, size, f"layers.{i}", ffns[slot])
        for i, slot in enumerate(slots_by_layer(config))
    ]
    with seeded(seed, "embed_tokens"):
        return Decoder(
            vocab_size=_vocab_size(model.vocab_size, tokenizer),
            hidden_size=model.hidden_size,
            layers=blocks,
            head_dim=size,
            rope_theta=model.rope_theta,
            norm_eps=model.norm_eps,
            tie_word_embeddings=model.tie_word_embeddings,
        )


def build_data(config: DictConfig) -> Dataset:
    """The tokens that a configuration trains on, from the cache or made now.

    Args:
        config: A composed configuration.

    Raises:
        DataError: The source has no text, or not enough.
    """
    source = build_source(config)
    tokenizer = tokenizer_of(config, source)
    return load_data(source, tokenizer, val_fraction=config.data.val_fraction)


def build_source(config: DictConfig) -> Source:
    """The source of documents of a configuration; nothing is read yet.

    Args:
        config: A composed configuration.

    Raises:
        BuildError: It refuses its options.
    """
    name, options = split(plain(config.data), {})
    for field in fields(DataConfig):  # what every source takes is not for its constructor
        options.pop(field.name, None)
    source: Source = construct("data", registries().data.get(name), options)
    return source


def tokenizer_of(config: DictConfig, source: Source | None = None) -> Tokenizer:
    """The tokenizer of a configuration; a BPE is trained on its data unless the cache has it.

    Args:
        config: A composed configuration.
        source: Its source, where it is built already.

    Raises:
        DataError: The name is unknown, the file cannot be used, or the source has no text.
    """
    name, val_fraction = config.data.tokenizer, config.data.val_fraction
    if bpe_vocab_size(name) is None:
        return build_tokenizer(name)
    return trained_bpe(name, source or build_source(config), val_fraction=val_fraction)


def _vocab_size(asked: int | None, tokenizer: Tokenizer) -> int:
    """Rows of the embedding; published models have more than their tokenizer has tokens."""
    if asked is not None and asked < tokenizer.vocab_size:
        raise BuildError(
            f"model.vocab_size is {asked}, and the tokenizer {tokenizer.name!r} has ids up to "
            f"{tokenizer.vocab_size - 1}; give at least {tokenizer.vocab_size}, or null"
        )
    return asked or tokenizer.vocab_size


def _build_block(config: DictConfig, size: int, part: str, component: Component) -> Block:
    model = config.model
    with seeded(config.seed, f"{part}.self_attn"):
        attention = Attention(
            hidden_size=model.hidden_size,
            num_attention_heads=model.num_attention_heads,
            num_key_value_heads=model.num_key_value_heads,
            head_dim=size,
            qk_norm=model.qk_norm,
            qk_norm_scope=model.qk_norm_scope,
            bias=model.attention_bias,
            norm_eps=model.norm_eps,
        )
    with seeded(config.seed, f"{part}.ffn"):
        ffn = assemble_ffn(
            component,
            hidden_size=model.hidden_size,
            inherited_activation=plain(config.activation),
        )
    return Block(
        attention=attention,
        ffn=ffn,
        hidden_size=model.hidden_size,
        norm_eps=model.norm_eps,
        dropout=model.dropout,
    )
