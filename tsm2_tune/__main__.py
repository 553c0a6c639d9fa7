"""`python -m tsm2_tune` is the `tsm2-tune` command."""

from tsm2_tune.cli import main

if __name__ == "__main__":
    main()
