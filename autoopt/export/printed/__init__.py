"""Pieces of exported code: functions that are printed by their source, folded by what a plan decides.

They are written for who reads the exported script, and run as they stand as well.
"""
