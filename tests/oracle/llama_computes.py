"""Fails if llama.cpp does not compute a model: on some it aborts, so `verify.py` asks in another process.

    python llama_computes.py MODEL
"""

import sys

import llama_cpp

if __name__ == "__main__":
    with llama_cpp.Model(sys.argv[1], n_ctx=32) as reference:
        reference.run([0, 1])
