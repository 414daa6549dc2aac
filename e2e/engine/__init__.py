"""A real vLLM on the CPU behind a real Envoy and Leadsman, measured end to end.

`make e2e-engine` runs it: `python -m engine --python VLLM_PYTHON` in e2e/.
"""
