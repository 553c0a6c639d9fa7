"""`tsm2-tune`, and `python -m tsm2_tune`: the command, with an early Ctrl-C as quiet as a late one."""

import sys


def main() -> None:
    """Run the command."""
    try:
        from tsm2_tune.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(130)  # as shells have it


if __name__ == "__main__":
    main()
