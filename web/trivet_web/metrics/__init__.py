"""What `/metrics` and the console show: counters of web processes and engines, and their newest samples."""
