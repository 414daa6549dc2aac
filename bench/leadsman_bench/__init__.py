"""Traces, a fleet in virtual time, the demo, and every number that the project claims."""
