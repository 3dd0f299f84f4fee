"""The child process of a local model: ``python -m hames.models.local_server WEIGHTS CONTEXT THREADS``.

Reads a key from standard input, prints its URL, and ends when standard input closes.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any


def main() -> None:
    """Load the weights and serve them until standard input closes."""
    weights, context, threads = sys.argv[1:4]
    key = sys.stdin.readline().strip()
    # The library writes to standard output: what the parent reads goes by another way.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    llama: Any = importlib.import_module("xllamacpp")
    parameters = llama.CommonParams()
    parameters.model.path = weights
    parameters.n_parallel = 1
    parameters.n_ctx = int(context)
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(threads)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0
    if key:
        parameters.api_keys = [key]
    server = llama.Server(parameters)
    answer.write(f"{server.listening_address}\n")
    answer.flush()
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
