"""`python -m servecheck`."""

import sys

from servecheck.cli import main

if __name__ == "__main__":
    sys.exit(main())
