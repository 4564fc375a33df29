"""Writes one tiny random model to the path that it is given."""

import sys

import tiny_models

if __name__ == "__main__":
    tiny_models.write(sys.argv[1], tiny_models.MAIN[0], "F32", 1)
