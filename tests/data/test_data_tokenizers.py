"""Tokenizers against the library's own ids and offsets: every byte belongs to one token."""

import json
import sys

import numpy as np
import pytest

from mlpkit.data import ByteTokenizer, DataError, JsonTokenizer, build_tokenizer
from mlpkit.data.tokenizers import bytes_between_starts

tokenizers = pytest.importorskip("tokenizers")

TEXT = "The naïve café, the 中文 text 🙂🙃 and <|endoftext|> in it\n\n  the end 🤖"


def byte_level(**options):
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, **options)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|pad|>", "<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator([TEXT] * 3 + ["the cat", "🙂🙂🙂"], trainer)
    return library


@pytest.fixture
def saved(tmp_path):
    def save(library):
        library.save(str(tmp_path / "tokenizer.json"))
        return tmp_path / "tokenizer.json"

    return save


def bytes_of_gpt2_characters():
    """GPT-2's table: printable Latin-1 stands for itself, the rest for U+0100 and up in order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in printable]
    return table | {chr(256 + i): byte for i, byte in enumerate(others)}


def test_bytes_are_their_own_ids_and_256_ends_a_document():
    tokenizer = build_tokenizer("bytes")
    assert isinstance(tokenizer, ByteTokenizer)
    every = bytes(range(256))
    ids, num_bytes = tokenizer.tokenize(every)
    assert (ids.tolist(), num_bytes.tolist()) == (list(range(256)), [1] * 256)
    assert tokenizer.encode(b"Az").tolist() == [65, 122]
    assert tokenizer.decode([*ids, 256]) == every
    assert (tokenizer.vocab_size, tokenizer.eos) == (257, 256)


def test_the_bytes_of_a_byte_level_token_are_those_it_is_made_of(saved):
    path = saved(byte_level())
    tokenizer = build_tokenizer(str(path))
    ids, num_bytes = tokenizer.tokenize(TEXT.encode())
    names = {index: name for name, index in json.loads(path.read_text())["model"]["vocab"].items()}
    table = bytes_of_gpt2_characters()
    spelled = [bytes(table[character] for character in names[index]) for index in ids.tolist()]
    assert b"".join(spelled) == TEXT.encode()
    assert num_bytes.tolist() == [len(token) for token in spelled]
    with pytest.raises(UnicodeDecodeError):  # the case is there: a token that is half a character
        [token.decode() for token in spelled]
    assert tokenizer.decode(ids) == TEXT.encode()


def test_a_special_token_in_a_text_is_text_and_the_known_name_ends_documents(saved):
    library = byte_level()
    tokenizer = JsonTokenizer(path=str(saved(library)))
    assert tokenizer.eos == library.token_to_id("<|endoftext|>") == 1
    assert tokenizer.eos not in tokenizer.encode(TEXT.encode())
    assert tokenizer.vocab_size == library.get_vocab_size()
    assert tokenizer.decode([1]) == b""


@pytest.mark.parametrize("said", ["<|pad|>", {"content": "<|pad|>"}])
def test_the_tokenizer_config_beside_the_file_says_the_end_token(saved, said):
    path = saved(byte_level())
    plain = JsonTokenizer(path=str(path.parent))
    path.with_name("tokenizer_config.json").write_text(json.dumps({"eos_token": said}))
    tokenizer = JsonTokenizer(path=str(path.parent))
    assert (plain.eos, tokenizer.eos) == (1, 0)
    assert plain.fingerprint() != tokenizer.fingerprint()


def test_truncation_and_padding_of_the_file_are_off(saved):
    library = byte_level()
    full = library.encode(TEXT).ids
    library.enable_truncation(3)
    library.enable_padding(length=500)
    library.encode_special_tokens = False
    ids = JsonTokenizer(path=str(saved(library))).encode(TEXT.encode())
    assert len(full) - 1 < len(ids) < 500


def test_a_prefix_space_that_the_text_lacks_is_not_counted(saved):
    library = byte_level()
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer = JsonTokenizer(path=str(saved(library)))
    _, num_bytes = tokenizer.tokenize("the 🙂".encode())
    assert num_bytes.sum() == len("the 🙂".encode()) == 8


def test_a_word_tokenizer_that_drops_spaces_gives_each_byte_to_one_token(saved):
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"[UNK]": 0, "ab": 7}, unk_token="[UNK]")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = JsonTokenizer(path=str(saved(library)))
    ids, num_bytes = tokenizer.tokenize(" ab  né ab\n".encode())
    assert ids.tolist() == [7, 0, 7]
    assert num_bytes.tolist() == [5, 4, 3]  # " ab  ", "né ", "ab\n"
    assert (tokenizer.vocab_size, tokenizer.eos) == (8, None)
    assert tokenizer.encode(b" \n").tolist() == []


def test_byte_fallback_tokens_have_a_byte_each(saved):
    fallback = {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
    library = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={"<unk>": 0, "a": 1, **fallback}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    tokenizer = JsonTokenizer(path=str(saved(library)))
    ids, num_bytes = tokenizer.tokenize("a🙂a".encode())
    assert ids.tolist() == [1, 2 + 0xF0, 2 + 0x9F, 2 + 0x99, 2 + 0x82, 1]
    assert num_bytes.tolist() == [1] * 6


@pytest.mark.parametrize(
    ("text", "starts", "expected"),
    [
        ("abc", [0, 1, 2], [1, 1, 1]),
        ("  abc ", [2, 4], [4, 2]),
        ("é🙂", [0, 1, 1, 1], [2, 1, 1, 2]),
        ("", [], []),
        ("ab", [0, 1, 0], [1, 0, 1]),
    ],
)
def test_bytes_between_starts_by_hand(text, starts, expected):
    assert bytes_between_starts(text, np.array(starts, np.int64)).tolist() == expected


def test_a_text_that_is_not_utf8_names_the_byte(saved):
    tokenizer = JsonTokenizer(path=str(saved(byte_level())))
    with pytest.raises(DataError, match=r"byte 2 is 0xff; use data\.tokenizer=bytes"):
        tokenizer.encode(b"ab\xff")


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(DataError, match=r"unknown tokenizer 'byte'; did you mean 'bytes'\?"):
        build_tokenizer("byte")


def test_a_missing_or_broken_file_is_one_error(tmp_path):
    with pytest.raises(DataError, match=r"gone\.json cannot be read \(No such file"):
        build_tokenizer(str(tmp_path / "gone.json"))
    with pytest.raises(DataError, match=r"tokenizer\.json cannot be read"):
        build_tokenizer(str(tmp_path))
    for content in ("{", "[]", '{"model": {}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(DataError, match=r"not a tokenizer\.json of the library"):
            build_tokenizer(str(tmp_path / "tokenizer.json"))


def test_a_missing_library_names_what_to_install(saved, monkeypatch):
    path = saved(byte_level())
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DataError, match=r"pip install 'mlpkit\[text\]'"):
        build_tokenizer(str(path))
