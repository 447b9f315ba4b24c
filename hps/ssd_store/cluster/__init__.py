"""A cluster's folder seen as the one store that its parts are."""
