"""``s2sft prepare wmt10`` as a script."""

from s2sft_fairseq.cli import script

if __name__ == "__main__":
    script("prepare", "wmt10")
