"""Read protocol buffers without their library: SentencePiece models and ONNX graphs are such messages."""

from collections.abc import Iterator

VARINT, EIGHT_BYTES, LENGTH, FOUR_BYTES = 0, 1, 2, 5
"""The wire types, the kinds of values of a message."""
_LONGEST_VARINT = 10  # bytes


def read_fields(message: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number and the value of each field of a message, in order; repeated fields come repeatedly.

    A value is a whole number, or the bytes of a text, a number or a message, which are not copied.

    Raises:
        ValueError: the bytes are no such message.
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            number, at = _varint(message, at)
            yield tag >> 3, number
            continue
        if kind == LENGTH:
            length, at = _varint(message, at)
        elif kind in (EIGHT_BYTES, FOUR_BYTES):
            length = 8 if kind == EIGHT_BYTES else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + length > len(message):
            raise ValueError("the message ends within a field")
        yield tag >> 3, message[at : at + length]
        at += length


def bytes_of(value: int | memoryview) -> memoryview:
    """Return the bytes of a field.

    Raises:
        ValueError: it holds a number.
    """
    if isinstance(value, int):
        raise ValueError("a number in place of bytes")
    return value


def text_of(value: int | memoryview) -> str:
    """Return the text of a field.

    Raises:
        ValueError: it holds a number, or is not UTF-8.
    """
    return bytes(bytes_of(value)).decode("utf-8")


def number_of(value: int | memoryview) -> int:
    """Return the whole number of a field.

    Raises:
        ValueError: it holds bytes.
    """
    if not isinstance(value, int):
        raise ValueError("bytes in place of a number")
    return value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """Return the number that begins at a byte, and where it ends."""
    value = 0
    for place in range(_LONGEST_VARINT):
        if at >= len(message):
            raise ValueError("the message ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than 64 bits")
