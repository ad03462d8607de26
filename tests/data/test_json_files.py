"""JSON that cannot be read is named, with the reason."""

import pytest

from s2sft_fairseq.data.json_files import read_json, read_json_object
from s2sft_fairseq.errors import UserError


def test_what_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"ä": [1, 2]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == read_json_object(tmp_path / "a.json") == {"ä": [1, 2]}
    (tmp_path / "b.json").write_text("[1]")
    assert read_json(tmp_path / "b.json") == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "must be JSON: "),
        (b'{"caf\xe9": 1}', "must be UTF-8, but byte 5 is not$"),
        (b"[1]", "must hold a JSON object, but holds a list$"),
    ],
)
def test_what_is_not(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} {message}"):
        read_json_object(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"absent\.json: cannot be read: No such file or directory$"):
        read_json(tmp_path / "absent.json")
