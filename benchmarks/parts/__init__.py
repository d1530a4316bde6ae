"""Seconds of whole runs of small scripts, as put together from their measured parts, beside bare runs."""
