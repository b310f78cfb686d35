"""`python -m torch_spyre.tools.trace trace.json`."""

import sys

from torch_spyre.tools.trace.command import main

sys.exit(main())
