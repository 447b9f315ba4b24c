"""The torch seam: look-ups and pooling as modules, row gradients, the row optimizer."""
