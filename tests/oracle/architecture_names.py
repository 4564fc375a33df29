"""Every architecture that llama.cpp's `gguf` package names is known, and no other.

    python architecture_names.py NAME...
"""

import sys

import gguf


def main(names):
    theirs = set(gguf.MODEL_ARCH_NAMES.values())
    unknown, invented = theirs.difference(names), set(names).difference(theirs)
    print(f"{len(names)} architectures; not among them {sorted(unknown)}; only there {sorted(invented)}")
    return bool(unknown or invented)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
