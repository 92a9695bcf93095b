"""`python -m strata` is `strata`."""

from strata.cli.main import main

main()
