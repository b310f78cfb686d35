"""Scratchpad planning: which buffers live in LX, and where."""
