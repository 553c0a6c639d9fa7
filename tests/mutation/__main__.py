"""The command. Its workers, which load this file too, need nothing of it."""

if __name__ == "__main__":
    from tests.mutation.command import main

    main()
