"""Numbers as Snappy and Parquet write them."""


def varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])
