"""What goes in and out: pictures of a stage, MSCCL's XML."""
