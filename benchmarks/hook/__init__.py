"""What listening to a script costs it: the same training bare and listened to, in turns."""
