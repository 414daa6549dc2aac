"""The live page: how fleet state travels to somebody's browser. Read-only, and nothing from a CDN.

`shown` says what is told, `history` keeps the last of it, `looking` asks a fleet how its workers
stand, and `server` serves files and a stream of events. A picker shows its own decisions
(`leadsman_extproc.page`), the operator what it hears of all pickers of a pool.
"""
