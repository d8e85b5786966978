"""Batches: each epoch sees every window once, any step can be made again, bits per byte."""

import math
import timeit

import numpy as np
import pytest
import torch

from mlpkit.data import ByteTokenizer, DataError, Dataset, Document, build_tokenizer, load_data
from mlpkit.data.batches import (
    bits_per_byte,
    epoch_order,
    tokens_per_epoch,
    train_batch,
    val_batches,
    windows_per_epoch,
)


def numbered(num_train, num_val=50):
    """Tokens that are their own places; validation tokens stand for as many bytes."""
    val = np.arange(num_val, dtype=np.uint32)
    return Dataset(
        train=np.arange(num_train, dtype=np.uint16),
        val=val,
        val_bytes=val,
        meta=None,
        tokenizer=ByteTokenizer(),
    )


def epoch_inputs(data, epoch, batch_size, sequence_length, seed=0):
    """The inputs of an epoch whose windows are a whole number of batches."""
    per_epoch = windows_per_epoch(data, sequence_length=sequence_length) // batch_size
    shape = {"batch_size": batch_size, "sequence_length": sequence_length, "seed": seed}
    indices = range(epoch * per_epoch, (epoch + 1) * per_epoch)
    return torch.cat([train_batch(data, index=i, **shape)[0] for i in indices])


def test_targets_are_the_tokens_after_the_inputs_round_the_ring():
    inputs, targets = train_batch(numbered(103), seed=3, index=0, batch_size=10, sequence_length=10)
    assert inputs.dtype == targets.dtype == torch.int64
    assert inputs.shape == targets.shape == (10, 10)
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert torch.equal(targets, (inputs + 1) % 103)


@pytest.mark.parametrize("epoch", [0, 1, 5])
def test_an_epoch_sees_every_window_once(epoch):
    data = numbered(103)
    inputs = epoch_inputs(data, epoch, batch_size=2, sequence_length=10)
    assert inputs.shape == (10, 10)
    tokens = inputs.flatten().tolist()
    assert len(set(tokens)) == len(tokens) == tokens_per_epoch(data, sequence_length=10) == 100
    assert len({start % 103 for start in inputs[:, 0].tolist()}) == 10


def test_the_offset_and_the_order_change_with_the_epoch_and_the_seed():
    data = numbered(1030)
    orders = [
        epoch_inputs(data, e, 2, 10, seed)[:, 0].tolist() for e, seed in [(0, 0), (1, 0), (0, 1)]
    ]
    assert len({tuple(order) for order in orders}) == 3
    assert len({frozenset(order) for order in orders}) == 3, "windows are cut at other places"


def test_a_batch_depends_on_its_arguments_alone():
    data, shape = numbered(500), {"seed": 7, "batch_size": 4, "sequence_length": 8}
    forward = [train_batch(data, index=i, **shape) for i in range(40)]
    epoch_order.cache_clear()
    for i in reversed(range(40)):
        assert torch.equal(train_batch(data, index=i, **shape)[0], forward[i][0])


def test_small_batches_are_the_parts_of_a_large_one():
    data, shape = numbered(500), {"seed": 7, "sequence_length": 8}
    large = train_batch(data, index=10, batch_size=6, **shape)[0]  # runs over the end of an epoch
    small = [train_batch(data, index=30 + i, batch_size=2, **shape)[0] for i in range(3)]
    assert torch.equal(large, torch.cat(small))
    assert 10 * 6 < windows_per_epoch(data, sequence_length=8) < 11 * 6


def test_more_rows_than_windows_go_on_into_the_next_epochs():
    inputs, _ = train_batch(numbered(21), seed=0, index=0, batch_size=5, sequence_length=10)
    for first in (0, 2):
        assert len(set(inputs[first : first + 2].flatten().tolist())) == 20


def philox_words(seed, epoch, count):
    """Philox4x64-10 of Salmon 2011 with the key (seed, epoch), from the counter 1 on."""
    words, mask = [], 2**64 - 1
    for counter in range(1, count // 4 + 2):
        x, key = [counter, 0, 0, 0], [seed, epoch]
        for _ in range(10):
            a, b = x[0] * 0xD2E7470EE14C6C93, x[2] * 0xCA5A826395121157
            x = [(b >> 64) ^ x[1] ^ key[0], b & mask, (a >> 64) ^ x[3] ^ key[1], a & mask]
            key = [(key[0] + 0x9E3779B97F4A7C15) & mask, (key[1] + 0xBB67AE8584CAA73B) & mask]
        words += x
    return words[:count]


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (5, 2), (2**64 - 1, 7)])
def test_the_order_is_the_ranks_of_philox_words_on_every_machine(seed, epoch):
    words = philox_words(seed, epoch, 10)
    order = epoch_order(seed, epoch, 9, 100)
    assert order.offset == words[0] % 100
    assert order.windows.tolist() == sorted(range(9), key=lambda i: words[1 + i])


def test_validation_windows_are_fixed_and_make_every_token_but_the_first_a_target():
    batches = list(val_batches(numbered(9, 41), batch_size=3, sequence_length=5))
    assert [b.inputs.shape[0] for b in batches] == [3, 3, 2]
    assert torch.equal(torch.cat([b.inputs for b in batches]).flatten(), torch.arange(40))
    assert torch.equal(torch.cat([b.targets for b in batches]).flatten(), torch.arange(1, 41))
    rows = torch.cat([b.num_bytes for b in batches])
    assert rows.tolist() == [sum(range(1 + 5 * row, 6 + 5 * row)) for row in range(8)]


def test_validation_can_stop_early():
    batches = list(val_batches(numbered(9, 41), batch_size=3, sequence_length=5, max_batches=1))
    assert [b.targets.max().item() for b in batches] == [15]


def test_a_split_shorter_than_a_sequence_says_found_and_needed():
    data, shape = numbered(8, 9), {"batch_size": 1, "sequence_length": 8}
    message = "training split has 8 tokens, one sequence of 8 needs 9"
    with pytest.raises(DataError, match=message):
        train_batch(data, seed=0, index=0, **shape)
    assert len(list(val_batches(data, **shape))) == 1
    with pytest.raises(
        DataError, match="validation split has 9 tokens, one sequence of 9 needs 10"
    ):
        next(val_batches(data, batch_size=1, sequence_length=9))
    with pytest.raises(DataError, match="sequence_length is 0; give at least 1"):
        windows_per_epoch(data, sequence_length=0)


def test_bits_per_byte_of_known_predictors():
    assert bits_per_byte(1000 * math.log(256), 1000) == pytest.approx(8, rel=1e-15)
    assert bits_per_byte(math.log(2) * 6, 3) == pytest.approx(2, rel=1e-15)
    with pytest.raises(DataError, match="0 bytes"):
        bits_per_byte(1.0, 0)


class Stories:
    """Documents with characters of one to four bytes."""

    def documents(self):
        for i in range(80):
            yield Document(f"{i}.txt", f"Story {i}: naïve 中文 🙂🙃 {'a' * i}\n".encode())

    def fingerprint(self):
        return "stories"


def test_the_same_predictor_has_the_same_bits_per_byte_under_two_tokenizers(tmp_path):
    """It finds every byte equally likely, 8 bits each, and knows where documents end."""
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=275, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    library.train_from_iterator([text.decode() for _, text in Stories().documents()], trainer)
    library.save(str(tmp_path / "tokenizer.json"))
    # A byte-level token is written with one character a byte.
    lengths = [len(library.id_to_token(i)) for i in range(library.get_vocab_size())]
    lengths[library.token_to_id("</s>")] = 0
    cases = {"bytes": [1] * 256 + [0], str(tmp_path / "tokenizer.json"): lengths}

    counts = []
    for name, bytes_of_id in cases.items():
        tokenizer = build_tokenizer(name)
        data = load_data(Stories(), tokenizer, val_fraction=0.1, cache_dir=tmp_path / "cache")
        batches = list(val_batches(data, batch_size=7, sequence_length=1))
        bytes_seen = sum(bytes_of_id[i] for b in batches for i in b.targets.flatten().tolist())
        num_bytes = sum(int(b.num_bytes.sum()) for b in batches)
        assert bits_per_byte(bytes_seen * math.log(256), num_bytes) == pytest.approx(8, rel=1e-12)
        assert num_bytes + bytes_of_id[data.val[0]] == data.meta.val.bytes
        counts.append((data.meta.val.bytes, len(data.val)))
    (bytes_bytes, byte_tokens), (json_bytes, json_tokens) = counts
    assert bytes_bytes == json_bytes
    assert json_tokens < byte_tokens


def test_a_batch_takes_well_under_a_millisecond(tmp_path):
    np.arange(2_000_000, dtype=np.uint16).tofile(tmp_path / "t.bin")
    data = numbered(10)
    train = np.memmap(tmp_path / "t.bin", np.uint16, mode="r")
    data = Dataset(train=train, val=train, val_bytes=train, meta=None, tokenizer=data.tokenizer)
    shape = {"seed": 0, "batch_size": 16, "sequence_length": 256}
    train_batch(data, index=0, **shape)
    seconds = (
        min(timeit.repeat(lambda: train_batch(data, index=9, **shape), number=20, repeat=5)) / 20
    )
    assert seconds < 1e-3
