"""`leadsman bench goals`: what the project promises of admission, measured and held against it."""
