"""The tools of fixes: the program, switching, second loaders, caches, training state."""
