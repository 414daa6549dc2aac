"""Watches workers: collectors subscribe to each engine's events, settings and load."""
