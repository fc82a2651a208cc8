"""`python -m waterspout.cli` is the command `waterspout`."""

import sys

from waterspout.cli.app import main

sys.exit(main())
