"""`python -m vanilla_transformer` is the console script."""

from vanilla_transformer.cli import main

main()
