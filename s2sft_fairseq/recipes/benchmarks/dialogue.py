"""Benchmarks of generating answers in conversations."""

from s2sft_fairseq.corpora.dialogue import read_coqa, read_persona_chat
from s2sft_fairseq.recipes.generation import Generation
from s2sft_fairseq.recipes.recipe import Benchmark, of_folder

ROLES = "--num-roles 3 --num-turns 16 --source-segments dialogue"

DIALOGUE = {
    "coqa": Benchmark(
        about="CoQA as generation: from a passage and a conversation about it to the next answer.",
        raw="DIR/coqa-{train,dev}-v1.0.json (https://stanfordnlp.github.io/coqa).",
        read=of_folder(read_coqa),
        settings={
            "ERNIE-GEN, configs/large/coqa_conf": {"preset": "large/coqa", "added_token": "[NOISE]"},
            "ERNIE-GEN's program; too long a source first loses the beginning of the passage": {
                "separator": " [SEP] ",
                "layout": f"{ROLES} --source-truncation left",
            },
            "the test set is not published": {"set": "dev"},
            "CoQA's evaluation": {"evaluation": "--task coqa"},
        },
        recipe=Generation,
    ),
    "persona_chat": Benchmark(
        about="Persona-Chat: from a persona and a conversation to the next answer.",
        raw="DIR/{train,valid,test}_self_original.txt (https://github.com/facebookresearch/ParlAI, task personachat).",
        read=of_folder(read_persona_chat),
        settings={
            "ERNIE-GEN, configs/large/persona-chat_conf": {"preset": "large/persona-chat"},
            "role and turn embeddings as there; too long a source loses its oldest turns, and the persona stays": {
                "separator": " [SEP] ",
                "layout": f"{ROLES} --source-truncation right,left",
            },
            "ERNIE-GEN's evaluation": {"evaluation": "--task persona_chat"},
        },
        recipe=Generation,
    ),
}
