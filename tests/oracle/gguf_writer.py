"""`gguf.GGUFWriter` for vocabularies: the library packs each item of an array with three calls."""

import struct

import gguf

TYPES = gguf.GGUFValueType


class Writer(gguf.GGUFWriter):
    """Writes what `gguf.GGUFWriter` writes."""

    def _pack_val(self, val, vtype, add_vtype, sub_type=None):
        kinds = {type(item) for item in val} if vtype is TYPES.ARRAY else set()
        if kinds == {str}:
            item_type, items = TYPES.STRING, b"".join(packed(item) for item in val)
        elif kinds == {gguf.TokenType}:
            item_type, items = TYPES.INT32, struct.pack(f"<{len(val)}i", *val)
        else:
            return super()._pack_val(val, vtype, add_vtype, sub_type)
        head = struct.pack("<I", vtype) if add_vtype else b""
        return head + struct.pack("<IQ", item_type, len(val)) + items


def packed(text):
    """A string as a GGUF file has it."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
