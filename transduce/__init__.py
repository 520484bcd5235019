"""transduce: learn to turn one sequence into another with the Transformer of "Attention Is All You Need"."""
