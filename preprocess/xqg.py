"""``s2sft prepare xqg`` as a script."""

from s2sft_fairseq.cli import script

if __name__ == "__main__":
    script("prepare", "xqg")
