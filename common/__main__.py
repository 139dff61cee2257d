"""`python -m common` is `study`."""

import sys

try:
    from common.cli import main
except KeyboardInterrupt:  # nothing has begun
    sys.exit(130)

if __name__ == "__main__":
    main()
