"""`python -m s2sft_fairseq`, the same as the console command `s2sft`."""

import sys

from s2sft_fairseq.cli import main

if __name__ == "__main__":
    sys.exit(main())
