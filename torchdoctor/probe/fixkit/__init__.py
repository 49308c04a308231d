"""What fixes work with: the program, switching, second loaders, caches, training state."""
