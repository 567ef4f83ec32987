"""A tuner that learns while a job runs which way to make a call is fastest (docs/tuner.md)."""
