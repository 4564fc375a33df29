"""The same weights as plain numbers: a quantized GGUF file written again in F32."""

import gguf
import numpy as np


def write(source, target):
    """Metadata is kept as it is; every tensor becomes F32, dequantized by the `gguf` package."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        # The header's own fields, and the key that the writer sets itself.
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value, kind = field.contents(), field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, list(value))
        else:
            writer.add_key_value(name, value, kind)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, np.ascontiguousarray(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
