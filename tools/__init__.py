"""What dev.py's commands are made of. None of it is part of the published pack."""
