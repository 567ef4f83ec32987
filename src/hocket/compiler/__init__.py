"""From a Chunk DAG to a Schedule, in passes (paper sections 4 and 5)."""
