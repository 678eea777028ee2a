"""What the commands do with runs: train, evaluate, calibrate, explain, and their folders."""
