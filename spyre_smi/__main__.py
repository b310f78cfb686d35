"""`python -m spyre_smi`."""

import sys

from spyre_smi.cli import main

sys.exit(main())
