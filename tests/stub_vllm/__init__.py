"""A stand-in for `vllm serve`: the endpoints of vLLM 0.31.0 that the miner uses, over a tiny model.

What it answers is sampled for real, on a CPU; weights really arrive and really change what is
sampled. It is stricter than vLLM where strictness finds bugs of the miner: it refuses any other
distribution than the plain softmax, control calls out of order, and weights pushed under running
requests.
"""
