"""`python -m vitreous`, which is what torchrun starts."""

from vitreous.cli import main

if __name__ == "__main__":
    main()
