"""`python -m queueproof` is the command `queueproof`."""

from queueproof.cli.main import main

main()
