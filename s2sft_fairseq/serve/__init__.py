"""`s2sft serve`: an HTTP server for a model, with a web page.

A request passes `gate.py` (access and limits), `app.py` (endpoints) and `batching.py` (the model's thread).
"""
