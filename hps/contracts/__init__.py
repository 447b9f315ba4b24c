"""The seams between the layers: what a tier, a row cache and a row server keep, as protocols."""
