"""Run the command line for ``python -m cdf_replicator``."""

from cdf_replicator.cli import main

if __name__ == "__main__":
    main()
