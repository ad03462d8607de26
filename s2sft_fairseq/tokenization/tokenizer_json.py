"""Any other tokenizer that a ``tokenizer.json`` describes: ModernBERT's BPE or mmBERT's, XLM-R's Unigram."""

from pathlib import Path

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.tokenization.library_tokenizer import LibraryTokenizer, load_library_file
from s2sft_fairseq.tokenization.vocabulary import Vocabulary


class TokenizerJson(LibraryTokenizer):
    """A tokenizer that does what its file says, normalization and decoding included."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load the tokenizer.

        Raises:
            UserError: if `tokenizers` is not installed or cannot read the file.
        """
        kept = [dictionary.eos_word, dictionary.symbols[dictionary.mask()], *vocabulary.added]
        super().__init__(dictionary, load_library_file(folder / vocabulary.files[0]), kept)
