import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.serve.settings import Access, Refused, read_key

KEY = "a key of 20 letters!".replace(" ", "-")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"])
def test_host_names_of_a_local_server(host):
    assert Access.of("127.0.0.1", None).allows_host(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "[::2]:80"]
)
def test_other_host_names_of_a_local_server(host):
    assert not Access.of("localhost", None).allows_host(host)
    assert Access.of("0.0.0.0", KEY).allows_host(host)


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        (f"Bearer {KEY}", True),
        (f"bearer  {KEY}", True),
        (f"Basic {KEY}", False),
        (KEY, False),
        ("Bearer", False),
        (f"Bearer {KEY}x", False),
        (f"Bearer {KEY[:-1]}", False),
        ("", False),
    ],
)
def test_the_key(header, allowed):
    assert Access.of("0.0.0.0", KEY).allows_key(header.encode()) == allowed


def test_no_key_is_needed_where_there_is_none():
    assert Access().allows_key(b"")


def test_read_key(tmp_path):
    path = tmp_path / "key"
    path.write_text(f"{KEY}\n")
    assert read_key(path) == KEY


@pytest.mark.parametrize("content", ["", "short\n", "two lines of a file\nthat is no key", "ein Schlüssel mit Umlaut"])
def test_a_file_that_holds_no_key(tmp_path, content):
    path = tmp_path / "key"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=f"--api-key-file.*{path}"):
        read_key(path)


def test_a_key_file_that_is_missing(tmp_path):
    with pytest.raises(UserError, match="No such file"):
        read_key(tmp_path / "key")


def test_a_reason_is_short_and_ascii():
    body = Refused(422, "\ud800" * 5000).body()
    assert body.isascii() and len(body) < 10_000
