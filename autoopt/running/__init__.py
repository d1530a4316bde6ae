"""One run from its options to its documents: started, resumed, or profiled only."""
