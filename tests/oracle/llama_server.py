"""llama.cpp's own HTTP server, from the wheel, for `cargo xtask bench cpu` and `bench recovery`.

    python llama_server.py MODEL --threads N --context N [--slots N] [--port N]

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
    arguments.add_argument("--context", type=int, required=True, help="tokens of each slot")
    arguments.add_argument("--slots", type=int, default=1)
    arguments.add_argument("--port", type=int, default=0)
    options = arguments.parse_args()

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.n_ctx = options.context * options.slots
    params.n_parallel = options.slots
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.hostnames = ["127.0.0.1"]
    params.port = options.port
    params.warmup = True
    params.endpoint_slots = False
    server = xllamacpp.Server(params)
    print("listening", server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
