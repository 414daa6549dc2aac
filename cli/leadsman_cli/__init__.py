"""The composition root: the `leadsman` command, which wires the layers together."""
