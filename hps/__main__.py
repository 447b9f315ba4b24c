"""`python -m hps`: the same as the command `hps`. Below it: hps.cli.main."""

import sys

from hps.cli.main import main

sys.exit(main())
