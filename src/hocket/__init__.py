"""hocket: write, prove, compile and run collective communication."""
