"""The shared-memory runtime: lowers a schedule to a plan, lets ranks meet, runs calls. Needs the native module."""
