"""Every architecture that llama.cpp's `gguf` package names is known, and no name is one that llama.cpp lacks.

llama.cpp is newer than the package, so names are looked up in its library, where one may be the end of another.

    python architecture_names.py NAME...
"""

import sys
from pathlib import Path

import gguf
import xllamacpp


def main(names):
    unknown = set(gguf.MODEL_ARCH_NAMES.values()).difference(names)
    libraries = [path.read_bytes() for path in Path(xllamacpp.__file__).parent.rglob("*.so*")]
    invented = [name for name in names if not any(f"{name}\0".encode() in library for library in libraries)]
    print(f"{len(names)} architectures; not among them {sorted(unknown)}; not in llama.cpp {invented}")
    return bool(unknown or invented)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
