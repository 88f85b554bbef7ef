"""kvtier inside engines: one package for each, which alone imports it."""
