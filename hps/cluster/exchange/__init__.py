"""Keys, rows and gradients on their way between the ranks that use and that own them."""
