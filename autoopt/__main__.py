"""``python -m autoopt`` is ``autoopt``."""

from __future__ import annotations

import sys

from autoopt.cli import main

if __name__ == "__main__":
    sys.exit(main())
