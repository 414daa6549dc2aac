"""The Envoy side: read a request, ask the core, answer; then watch the response and grade."""
