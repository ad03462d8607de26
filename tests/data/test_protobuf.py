"""Reading protocol buffers."""

import pytest

from s2sft_fairseq.data.protobuf import bytes_of, number_of, read_fields, text_of


def test_fields_of_every_wire_type():
    message = b"\x08\x96\x01" + b"\x12\x03abc" + b"\x1d\x00\x00\x80\x3f" + b"\x21" + bytes(8) + b"\x12\x00"
    found = [
        (number, value if isinstance(value, int) else bytes(value))
        for number, value in read_fields(memoryview(message))
    ]
    assert found == [(1, 150), (2, b"abc"), (3, b"\x00\x00\x80\x3f"), (4, bytes(8)), (2, b"")]
    assert (number_of(150), text_of(memoryview(b"abc")), bytes(bytes_of(memoryview(b"a")))) == (150, "abc", b"a")


@pytest.mark.parametrize("message", [b"\x08", b"\x0a\x05abc", b"\x0b", b"\x08" + b"\xff" * 11, b"\x0d\x00"])
def test_no_message(message):
    with pytest.raises(ValueError):
        list(read_fields(memoryview(message)))


def test_values_of_another_kind():
    for read, value in ((bytes_of, 1), (text_of, memoryview(b"\xff")), (number_of, memoryview(b""))):
        with pytest.raises(ValueError):
            read(value)
