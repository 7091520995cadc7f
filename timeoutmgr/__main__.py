"""Run the command line: ``python -m timeoutmgr``."""

from timeoutmgr.cli.main import main

if __name__ == "__main__":
    main()
