"""``s2sft pretrain`` as a script."""

from s2sft_fairseq.cli import script

if __name__ == "__main__":
    script("pretrain")
