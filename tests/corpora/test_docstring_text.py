"""A docstring becomes its first sentence and the readable text after it, whatever its style."""

import inspect

import pytest

from s2sft_fairseq.corpora.docstring_text import clean_inline, split_docstring


def split(docstring: str) -> tuple[str, str]:
    return split_docstring(inspect.cleandoc(docstring))


def test_numpydoc():
    summary, body = split(
        """
        Compute the mean of `x`.

        Sums, then divides. It is
        exact.

        Parameters
        ----------
        x : array_like
            The numbers, in
            any order.
        axis, dtype : int or None, optional
            Which axis.
        **kwargs
            Passed on.

        Returns
        -------
        ndarray
            The mean.

        Raises
        ------
        ValueError : if empty
        TypeError
            If no numbers.

        See Also
        --------
        median : another one

        Notes
        -----
        Found in [1]_.

        References
        ----------
        .. [1] A book, https://example.org/book

        Examples
        --------
        Text that explains code.

        >>> mean([1, 2])
        1.5
        """
    )
    assert summary == "Compute the mean of x."
    assert body == (
        "Sums, then divides. It is exact. Parameters: x (array_like): The numbers, in any order. axis, dtype (int or "
        "None, optional): Which axis. **kwargs: Passed on. Returns: ndarray: The mean. Raises: ValueError: if empty. "
        "TypeError: If no numbers. Notes: Found in."
    )


def test_google_style():
    summary, body = split(
        """Open a file.

        Args:
            path (str): The path, which
                may be relative.
            mode: How to open it.
        Returns:
            The file.

        Example::

            >>> open("x")

        Note:
            Close it.
        """
    )
    assert summary == "Open a file."
    assert body == (
        "Parameters: path (str): The path, which may be relative. mode: How to open it. Returns: The file. "
        "Note: Close it."
    )


def test_sphinx_fields():
    summary, body = split(
        """Send it.

        :param str to: where to
        :type to: str
        :raises OSError: if it fails
        :returns: nothing
        """
    )
    assert (summary, body) == (
        "Send it.",
        "to: where to. Type of to: str. Raises OSError: if it fails. Returns: nothing.",
    )


def test_sentences_after_the_first_belong_to_the_body():
    summary, body = split("""Return e.g. the U.S. name. Then stop! And go on.\n\nMore""")
    assert summary == "Return e.g. the U.S. name."
    assert body == "Then stop! And go on. More."


@pytest.mark.parametrize(
    ("block", "kept"),
    [
        ("After.\n\n>>> 1 + 1\n2\n\nBetween.\n", "After. Between."),
        ("Like this::\n\n    code()\n    more\n\nBetween.", "Like this: Between."),
        ("```python\nx = 1\n```\nBetween.", "Between."),
        (".. math::\n\n    x^2\n\n    y\n\nBetween.", "Between."),
        (".. versionadded:: 1.2\n   That says it.\n\nBetween.", "Between."),
        (".. note:: Mind\n   the gap.\n\nBetween.", "Mind the gap. Between."),
        (".. _label:\n\n.. a comment\n   goes on\n\nBetween.", "Between."),
        ("===  ===\na    b\n===  ===\n\nBetween.", "a b. Between."),
        ("| a | b |\n\nBetween.", "Between."),
        ("import os\nfor x in y:\n\nBetween.", "Between."),
        ("Copyright 2020 Somebody.\n\nBetween.", "Between."),
        ("Are:\n\n- one\n  goes on\n- two\n* three\n1. four\n\nLast.", "Are: one goes on. two. three. four. Last."),
        ("Returns\n-------\n\nNotes\n-----\nBetween.", "Notes: Between."),
        ("Heading\n=======\n\nBetween.", "Heading: Between."),
    ],
)
def test_blocks(block, kept):
    assert split(f"Do a thing.\n\n{block}\n") == ("Do a thing.", kept)


def test_a_signature_is_no_summary():
    assert split("f(x, y=None) -> Tensor\n\nAdds the two.\n\nSlowly.") == ("Adds the two.", "Slowly.")
    assert split("f(x)") == ("", "")


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("see :func:`~a.b.c`, :class:`!d`, :ref:`text <label>`", "see c, d, text"),
        ("``x`` and `y` and `text <https://example.org>`_", "x and y and text"),
        ("*very* **bold**, but *args and **kwargs, 2 * 3 * 4", "very bold, but *args and **kwargs, 2 * 3 * 4"),
        (r"of :math:`O(\frac{n}{2} \log \mathbf{x}_{i})` steps", "of O(n/2 log x_i) steps"),
        ("Old `quotes' [1]_ [Kn97]_ at https://example.org/x .", "Old 'quotes' at."),
        ("call f() with [] or %(default)s", "call f() with or"),
        ("  a \n  b\u00a0c ", "a b c"),
    ],
)
def test_inline_markup(raw, clean):
    assert clean_inline(raw) == clean


@pytest.mark.parametrize("docstring", ["", "   ", "\n\n", "-----", ">>> f()", "Parameters\n----------\n", "One line."])
def test_docstrings_without_a_body(docstring):
    assert split(docstring)[1] == ""
