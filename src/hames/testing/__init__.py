"""Fakes that are part of the product: for dry runs, for benchmarks, and for the tests of users.

``scripted`` is a model that says what a file tells it to; ``stub`` is a model server over real sockets, with faults on demand;
``replay`` records a conversation with a server and plays it back; ``clock`` is time that a test owns.
"""
