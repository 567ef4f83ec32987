"""hocket inside of other people's programs."""
