"""Added tokens that contradict or contain each other."""

import json

import pytest
from tokenizer_folders import WRITERS, write_gemma, write_modernbert, write_wordpiece

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary


@pytest.mark.parametrize(
    "added",
    [
        {"a!": 85, "b!": 85},
        {"a!": 85, "b!": 87},
        {"[PAD]": 1},
        {"a!": True},
        {"a!": "85"},
        {"a!": -1},
        {"a!": 8.5},
        [1],
    ],
    ids=str,
)
def test_added_tokens_that_contradict_each_other(tmp_path, added):
    write_wordpiece(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(UserError, match=r"added_tokens\.json"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "token", [{"content": 1, "id": 500}, {"content": "a", "id": "5"}, {"content": "a", "id": True}, {}, 5]
)
def test_added_tokens_of_a_tokenizer_json(tmp_path, token):
    write_modernbert(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    document["added_tokens"].append(token)
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"tokenizer\.json must hold "):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("scheme", WRITERS)
def test_added_tokens_that_contain_each_other(tmp_path, scheme):
    """Each character of a text is of one token, the longest that begins there."""
    WRITERS[scheme](tmp_path)
    size = len(read_vocabulary(tmp_path).symbols)
    tokens = ["a!", "a!a!", "!a", "[MASK]a!", "a![MASK]"]
    (tmp_path / "added_tokens.json").write_text(json.dumps({token: size + n for n, token in enumerate(tokens)}))
    found = open_tokenizer(tmp_path).encode_batch(["a!a!a!", "a!" * 50_000, "a![MASK]a!"])
    assert list(found) == ["a!a! a!", " ".join(["a!a!"] * 25_000), "a![MASK] a!"]


def test_added_tokens_that_become_each_other(tmp_path):
    """The normalizer runs once over each token and each text, so that a cycle has no effect on the time."""
    write_gemma(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    size = len(read_vocabulary(tmp_path).symbols)
    steps = [{"type": "Replace", "pattern": {"String": a}, "content": b} for a, b in (("a", "b"), ("b", "a"))]
    document["normalizer"] = {"type": "Sequence", "normalizers": steps}
    for number, token in enumerate(["a!", "b!", "a!b!", "b!a!"], size):
        document["added_tokens"].append({**document["added_tokens"][-1], "id": number, "content": token})
        document["added_tokens"][-1]["normalized"] = True
    path.write_text(json.dumps(document))
    tokenizer = open_tokenizer(tmp_path)
    found = tokenizer.encode("b!a!" * 25_000).split()
    # The last two tokens both become a!a!, and the library finds any one of them.
    assert len(found) == 25_000 and set(found) <= {"a!b!", "b!a!"}
