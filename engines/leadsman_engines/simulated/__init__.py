"""A serving engine imitated literally: the yardstick that predictions are held against.

Theory. An engine is three things: a *scheduler* that hands out a token budget step by step, a
*block pool* that keeps prefixes until their memory is needed, and *hardware* on which a step lasts
as long as its arithmetic and memory traffic take. Each is imitated by itself (`scheduler`,
`blocks`, `hardware`), and `engine` turns them with a clock that the caller owns. The HTTP server
(`server`) is the same engine driven by the wall clock.

Nothing here is shared with the predictor, neither code nor formulas: a mistake common to both would
not show. It imports nothing of the other layers.

Ignored: speculative decoding, LoRA slots, multimodal encoders, KV connectors, hybrid cache groups,
pipeline parallelism.
"""
