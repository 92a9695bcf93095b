"""Runs llama.cpp's server: run by the engines' own Python, whose llama.cpp comes without its program.

`llama_server.py MODEL.gguf NAME PORT SLOTS`
"""

from __future__ import annotations

import signal
import sys

import xllamacpp

_, model, name, port, slots = sys.argv
params = xllamacpp.CommonParams()
params.model.path, params.model_alias = model, {name}
params.hostnames, params.port = ["127.0.0.1"], int(port)
params.n_parallel, params.n_ctx = int(slots), 2048 * int(slots)
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.endpoint_metrics, params.warmup = True, False
server = xllamacpp.Server(params)
signal.sigwait({signal.SIGTERM})
