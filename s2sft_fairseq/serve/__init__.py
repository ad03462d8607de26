"""`s2sft serve`: a model behind HTTP, with a page.

A request passes `gate.py` (who may ask, and how much), `app.py` (what is asked) and `batching.py` (the model's thread).
"""
