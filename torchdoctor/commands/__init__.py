"""The commands, one file each: arguments in, text out. They decide nothing."""
