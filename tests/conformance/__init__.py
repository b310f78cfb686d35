"""Conformance: every entry of PyTorch's OpInfo database on the card against the CPU.

    python -m tests.conformance --ops "sort,topk" --dtypes float16 --json out.json

`samples` makes the inputs, `variants` the calls, `compare` judges a result, `check` puts the three
together for one entry, `pool` keeps entries that crash or hang from taking the run down, `results`
is what is written and counted, `page` the page of the docs.
"""
