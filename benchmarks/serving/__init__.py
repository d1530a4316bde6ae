"""Trained models within a latency, and hyper-parameters that were searched: figures of whole commands."""
