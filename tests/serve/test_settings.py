import os
from dataclasses import fields

import pytest

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.serve.settings import Access, Limits, Refused, read_key

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


@pytest.mark.parametrize(
    "host",
    [
        *("localhost:evil.com", "localhost:", "localhost:80@evil.com", "evil@localhost", "localhost.", "local host"),
        *(
            "localhost:99999",
            "localhost:8000:1",
            "127.0.0.1:٣",
            "::1",
            "[::1",
            "[::1]evil.com",
            "[::1]:x",
            "[127.0.0.1]",
        ),
        *("localhost/", "localhost\t", "127.1", "[localhost]"),
    ],
)
def test_hosts_that_are_no_names_of_this_machine(host):
    assert not Access.of("127.0.0.1", None).allows_host(host)


def test_origins():
    access = Access()
    assert access.allows_origin("", "localhost:80") and access.allows_origin("https://localhost:80", "localhost:80")
    for origin in ("null", "ftp://localhost:80", "localhost:80", "http://localhost:80/", "http://localhost:81"):
        assert not access.allows_origin(origin, "localhost:80")


@pytest.mark.parametrize("name", [field.name for field in fields(Limits)])
def test_limits_are_finite_numbers_in_their_range(name):
    for value in (float("nan"), float("inf"), float("-inf"), -1, 10**30, "5", None, True):
        with pytest.raises(UserError, match=as_option(name)):
            Limits(**{name: value})


def test_wrong_limits_are_reported_together():
    with pytest.raises(UserError) as error:
        Limits(max_body=0, max_beam=2.5, max_wait_ms=60_001)
    assert len(error.value.problems) == 3
    assert Limits(max_wait_ms=0, timeout=0.2)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"0123456789abcde\n",
        b"0123456789abcdef\n\n",
        b" 0123456789abcdef",
        b"0123456789\tabcdef",
        b"a" * 5000,
    ],
)
def test_keys_that_no_header_could_send(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"--api-key-file .* 16 to 4096"):
        read_key(path)


def test_a_key_with_the_line_end_of_windows(tmp_path):
    path = tmp_path / "key"
    path.write_bytes(f"{KEY}\r\n".encode())
    assert read_key(path) == KEY


def test_a_key_that_everybody_can_read(tmp_path, caplog):
    path = tmp_path / "key"
    path.write_text(KEY)
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True)):
        path.chmod(mode)
        caplog.clear()
        assert read_key(path) == KEY
        assert ("--api-key-file" in caplog.text) == warned


def test_a_key_file_that_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "key")
    with pytest.raises(UserError, match=r"--api-key-file .*pipe"):
        read_key(tmp_path / "key")
