"""`spyre-smi`: what the Spyre cards of this machine are doing, from a second terminal.

A package of its own, beside `torch_spyre`: importing that one imports PyTorch, which takes seconds,
and all that is needed here is a page of numbers that each process publishes in shared memory
(`torch_spyre/csrc/card/telemetry.h`).
"""
