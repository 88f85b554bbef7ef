"""``python -m kvtier`` is the ``kvtier`` command."""

from kvtier.cli import main

if __name__ == "__main__":
    main()
