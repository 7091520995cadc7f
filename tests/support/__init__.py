"""What unit tests share: a clock that is moved by hand, and ports whose faults are scripted."""
