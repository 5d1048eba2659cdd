"""Reads serialized protobuf just far enough to name the field at fault."""

from collections.abc import Callable, Iterator
from itertools import islice

from google.protobuf.descriptor import Descriptor, FieldDescriptor

# Naming a field is a courtesy: it must not cost more than refusing the message saves.
MAX_FIELDS = 1_000
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


def largest_field(descriptor: Descriptor, data: bytes) -> str:
    """Dotted path of the innermost field that holds most of the bytes, "" if none does."""

    def holds_most(field: FieldDescriptor, payload: memoryview) -> bool:
        return len(payload) * 2 > len(data)

    return _find(descriptor, memoryview(data), holds_most)


def invalid_text_field(descriptor: Descriptor, data: bytes) -> str:
    """Dotted path of the first string field that is not UTF-8, "" if there is none."""

    def is_invalid(field: FieldDescriptor, payload: memoryview) -> bool:
        if field.message_type is not None:
            return bool(_find(field.message_type, payload, is_invalid))
        return field.type == FieldDescriptor.TYPE_STRING and not _is_utf8(payload)

    return _find(descriptor, memoryview(data), is_invalid)


def _find(
    descriptor: Descriptor,
    data: memoryview,
    accept: Callable[[FieldDescriptor, memoryview], bool],
) -> str:
    for number, payload in islice(_fields(data), MAX_FIELDS):
        field = descriptor.fields_by_number.get(number)
        if field is None or not accept(field, payload):
            continue
        inner = field.message_type
        rest = _find(inner, payload, accept) if inner is not None else ""
        return f"{field.name}.{rest}" if rest else field.name
    return ""


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Number and payload of every length-delimited field; stops at the first malformed byte."""
    position = 0
    try:
        while position < len(data):
            tag, position = _varint(data, position)
            kind = tag & 7
            if kind == VARINT:
                _, position = _varint(data, position)
            elif kind in (FIXED64, FIXED32):
                position += 8 if kind == FIXED64 else 4
            elif kind == LENGTH:
                length, position = _varint(data, position)
                if position + length > len(data):
                    return
                yield tag >> 3, data[position : position + length]
                position += length
            else:
                return
    except IndexError:
        return


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise IndexError("varint longer than 10 bytes")


def _is_utf8(payload: memoryview) -> bool:
    try:
        str(payload, "utf-8")
    except UnicodeDecodeError:
        return False
    return True
