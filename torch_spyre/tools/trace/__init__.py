"""Analysis of traces: what `torch.profiler` exported of a card's work, in tables and a page.

    python -m torch_spyre.tools.trace trace.json        (or: spyre trace trace.json)

`read.py` takes a file apart, `host.py` finds out what the host was doing, `analyse.py` adds up;
`table.py`, `text.py` and `page.py` show it. Nothing here needs torch: the command starts at once.
"""
