"""`leadsman conformance`: a script of ext_proc exchanges that any endpoint picker can be put to."""
