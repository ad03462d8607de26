"""JSON and TOML that are nested deeply enough to end Python."""

from pathlib import Path

import pytest

import s2sft_fairseq
from s2sft_fairseq.corpora.pairs import USUAL, read_pairs
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.data.bounded_files import parse_json, read_json
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.settings import read_toml

DEEP = {
    "lists": "[" * 100_000 + "]" * 100_000,
    "objects": '{"a":' * 500 + "1" + "}" * 500,
    "101": "[" * 101 + "]" * 101,
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_json(tmp_path, name):
    (tmp_path / "a.json").write_text(DEEP[name])
    with pytest.raises(UserError, match=r"a\.json must be JSON: it is nested more than 100 deep"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_text(f'{{"src": "a", "tgt": "b"}}\n{{"src": {DEEP[name]}}}\n')
    malformed = Malformed()
    assert len(list(read_pairs([tmp_path / "a.jsonl"], USUAL, malformed))) == 1
    assert malformed.lines() == [f"{tmp_path / 'a.jsonl'}:2: is not valid JSON"]


def test_valid_json():
    assert parse_json(f"{'[' * 100}{2**63 - 1}, {-(2**63)}{']' * 100}") is not None
    assert parse_json(b'{"a": "\\ud83d\\ude00", "b": [1e3, null, true]}') == {"a": "😀", "b": [1e3, None, True]}


def test_deep_toml(tmp_path):
    (tmp_path / "mine.toml").write_text(f"seed = {'[' * 100_000}{']' * 100_000}")
    with pytest.raises(UserError, match=r"mine\.toml must be a TOML file of settings, but is nested deeply"):
        read_toml(tmp_path / "mine.toml")


def test_all_json_of_others_passes_one_reader():
    """The other modules parse what this package wrote: in the user's cache, in the same process, in its own actors."""
    package = Path(s2sft_fairseq.__file__).parent
    found = {str(path.relative_to(package)) for path in package.rglob("*.py") if "json.load" in path.read_text("utf-8")}
    own = {"modules/matmul.py", "inference/files.py", "inference/shards.py", "inference/ray_engine.py"}
    assert found == {"data/bounded_files.py", *own}
