"""Tags of Snappy as a writer may set them but none does, and what they make."""

from __future__ import annotations

import random

from tests.weir.operators.sources.varints import varint


def as_specified(packed: bytes, size: int) -> bytes | None:
    """Decompressed tag by tag; None: it cannot be."""
    at = next((place for place, byte in enumerate(packed[:5]) if byte < 0x80), 5) + 1
    said = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(packed[:at]))
    if at > min(5, len(packed)) or said != size:
        return None
    out = made_by(packed, at, size)
    return out if out is not None and len(out) == size else None


def made_by(packed: bytes, at: int, size: int) -> bytes | None:
    """What the tags from a place on make; None: there are none such, or they make more."""
    out = bytearray()
    while at < len(packed):
        kind, number = packed[at] & 3, packed[at] >> 2
        extra = max(0, number - 59) if kind == 0 else (1, 2, 4)[kind - 1]
        operand = int.from_bytes(packed[at + 1 : at + 1 + extra], "little")
        at += 1 + extra
        if at > len(packed):
            return None
        if kind == 0:
            length = operand + 1 if extra else number + 1
            if length > len(packed) - at or length > size - len(out):
                return None
            out += packed[at : at + length]
            at += length
            continue
        length, offset = number + 1, operand
        if kind == 1:
            length, offset = 4 + (number & 7), number >> 3 << 8 | operand
        if not 0 < offset <= len(out) or length > size - len(out):
            return None
        for _ in range(length):
            out.append(out[-offset])
    return bytes(out)


def tags(draw: random.Random, wanted_bytes: int, longest: int = 300) -> bytes:
    """Tags that make so many bytes: literals of few bytes and copies, some of them many times in the same form."""
    out, size = bytearray(), 0
    near = [*range(1, 10), 8, 8, 8, 15, 16, 17, 31, 32, 33, 64, 100]
    while size < wanted_bytes:
        literal = draw.choice([0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 31, 32, 33, 59, 60, 61, longest]) or (not size)
        length = draw.choice([0, 8 - literal, 4, 7, 8, 11, 12, 15, 16, 17, 31, 32, 33, 48, 64])
        kind, wanted = draw.choice([1, 2, 3]), draw.choice([*near, draw.randrange(1, wanted_bytes + 1)])
        for _ in range(draw.choice([1, 1, 2, 40])):
            literal = min(literal, wanted_bytes - size)
            if literal:
                last, extra = literal - 1, 0 if literal <= 60 else draw.choice([2, 3, 4])
                out.append((59 + extra if extra else last) << 2)
                out += (last.to_bytes(extra, "little") if extra else b"") + draw.randbytes(literal)
                size += literal
            offset = min(wanted, size)
            length = min(length, wanted_bytes - size)
            if length < 1:
                continue
            if kind == 1 and 4 <= length <= 11 and offset < 1 << 11:
                out += bytes([offset >> 8 << 5 | length - 4 << 2 | 1, offset & 0xFF])
            else:
                form = 3 if kind == 3 or offset >= 1 << 16 else 2
                out += bytes([length - 1 << 2 | form]) + offset.to_bytes(2 * (form - 1), "little")
            size += length
    return bytes(out)


def stream(draw: random.Random) -> tuple[bytes, int]:
    """Tags, and the bytes that they make."""
    size = draw.randrange(3000, 3400)
    return bytes(varint(size)) + tags(draw, size), size


def damaged(packed: bytes, draw: random.Random) -> bytes:
    """Some bytes are others."""
    data = bytearray(packed)
    for _ in range(draw.choice([1, 4])):
        place = draw.choice([draw.randrange(min(12, len(data))), draw.randrange(len(data))])
        data[place] = draw.choice([0, 255, data[place] ^ 1 << draw.randrange(8), draw.randrange(256)])
    return bytes(data)
