"""`python -m torch_spyre.backend <bundle dir>`: the same as `spyre run <bundle dir>`."""

import sys

from torch_spyre.tools.cli import main

sys.exit(main(["run", *sys.argv[1:]]))
