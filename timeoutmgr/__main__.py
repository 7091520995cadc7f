"""``python -m timeoutmgr`` is the command line."""

from timeoutmgr.cli.main import main

if __name__ == "__main__":
    main()
