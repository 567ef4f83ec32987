"""``python -m hocket``: the command line."""

from hocket.cli import main

if __name__ == "__main__":
    main()
