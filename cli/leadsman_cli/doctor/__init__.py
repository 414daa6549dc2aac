"""`leadsman doctor`: what of a deployment would make predictions worse, and what to change."""
