"""The three stages of a program, immutable: Chunk DAG, Instruction DAG, Schedule (paper section 4 and 5)."""
