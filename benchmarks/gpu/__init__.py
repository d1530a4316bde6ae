"""autoopt on a CUDA device against what people do by hand."""
