"""``s2sft prepare squad_qg`` as a script."""

from s2sft_fairseq.cli import script

if __name__ == "__main__":
    script("prepare", "squad_qg")
