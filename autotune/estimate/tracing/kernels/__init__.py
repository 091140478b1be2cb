"""What kernels choose, keep and take, beside what a trace shows. A child only."""
