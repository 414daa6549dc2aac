"""Benchmarks of what runs in a cluster: the operator, its stream, and a picker that joins.

Engines and replicas are processes of their own, so what is measured is the operator alone. The API
server is a real one, empty but for the CRDs: `make bench-operator` brings it.
"""
