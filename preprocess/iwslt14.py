"""``s2sft prepare iwslt14`` as a script."""

from s2sft_fairseq.cli import script

if __name__ == "__main__":
    script("prepare", "iwslt14")
