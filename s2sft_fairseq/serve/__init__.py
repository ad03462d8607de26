"""`s2sft serve`: an HTTP server for a model, with a web page.

A request passes `connections.py` (uvicorn's connections, with time limits), `gate.py` (access and limits), `app.py`
(endpoints) and `batching.py` (the model's thread).
"""
