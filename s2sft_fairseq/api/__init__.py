"""The Python interface: `Seq2Seq`, `Classifier` and `Reader`, which share their code with the commands."""
