"""`python -m common` is `study`."""

from common.cli import main

if __name__ == "__main__":
    main()
