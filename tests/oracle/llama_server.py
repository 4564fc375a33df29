"""llama.cpp's own HTTP server, from the wheel, for `cargo xtask bench cpu`.

    python llama_server.py MODEL --threads N --context N

Prints `listening URL` and serves until standard input closes, so that it cannot outlive the
benchmark that started it.
"""

import argparse
import sys

import xllamacpp


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model")
    arguments.add_argument("--threads", type=int, required=True)
    arguments.add_argument("--context", type=int, required=True)
    options = arguments.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.n_ctx = options.context
    params.n_parallel = 1
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.warmup = True
    params.endpoint_slots = False
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
