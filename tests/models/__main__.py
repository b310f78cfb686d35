"""`python -m tests.models [name ...]`: the zoo, or models by name, on the device as a table."""

from __future__ import annotations

import sys

from tests.models.further import FURTHER, NOT_WHOLE
from tests.models.report import HEADING, examine
from tests.models.zoo import ZOO

if __name__ == "__main__":
    models = {**ZOO, **FURTHER, **NOT_WHOLE}
    unknown = [name for name in sys.argv[1:] if name not in models]
    if unknown:
        sys.exit(f"no such models: {', '.join(unknown)}; there are {', '.join(models)}")
    print(HEADING)
    for name in sys.argv[1:] or ZOO:
        print(examine(name, models[name]), flush=True)
