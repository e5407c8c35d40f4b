"""What others call in a task manager over gRPC and HTTP."""
