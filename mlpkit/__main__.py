"""``python -m mlpkit``."""

import sys

from mlpkit.cli import main

sys.exit(main())
