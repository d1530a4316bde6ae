"""Placebo commits asked about one after another under one ledger."""
