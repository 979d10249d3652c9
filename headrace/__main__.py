"""`python -m headrace` is `headrace`."""

import os
import sys

if __name__ == "__main__":
    if sys.path[0] in ("", os.getcwd()):
        # "-m" has put the current folder in front of the path, where a numpy.py in it would be taken for NumPy
        here = sys.path.pop(0)
        from headrace.core.trust import is_run

        sys.path += [] if is_run(here) else [here]
    from headrace.cli.main import main

    sys.exit(main())
