"""The records of all benchmarks by name, in a module for each kind."""

from s2sft_fairseq.recipes.benchmarks.data_to_text import DATA_TO_TEXT
from s2sft_fairseq.recipes.benchmarks.dialogue import DIALOGUE
from s2sft_fairseq.recipes.benchmarks.questions import QUESTIONS
from s2sft_fairseq.recipes.benchmarks.summarization import SUMMARIZATION
from s2sft_fairseq.recipes.benchmarks.translation import TRANSLATION
from s2sft_fairseq.recipes.benchmarks.understanding import UNDERSTANDING

GENERATION = dict(sorted((SUMMARIZATION | QUESTIONS | DIALOGUE | DATA_TO_TEXT | TRANSLATION).items()))
BENCHMARKS = dict(sorted((GENERATION | UNDERSTANDING).items()))
