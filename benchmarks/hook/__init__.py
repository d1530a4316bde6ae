"""Cost of listening to a script: the same training bare and listened to, in turns."""
