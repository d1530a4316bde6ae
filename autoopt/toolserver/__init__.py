"""``autoopt mcp``: autoopt's commands as tools of the Model Context Protocol, for coding agents."""
