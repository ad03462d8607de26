"""The options of search that encoders and encoder-decoders have in common, beyond fairseq's."""

from dataclasses import dataclass, field

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from s2sft_fairseq.generation.search_options import EARLY_STOPS


@dataclass
class SearchConfig(FairseqDataclass):
    """When a search ends."""

    early_stop: ChoiceEnum(list(EARLY_STOPS)) = field(  # type: ignore[valid-type]
        default="exact",
        metadata={
            "help": "when the search for a sentence ends before the maximum length. exact: when no open hypothesis can "
            "become one of the --nbest, which are therefore those of a search that never stops early; fairseq: when "
            "--beam hypotheses have ended; never: not at all, as with --no-early-stop"
        },
    )
