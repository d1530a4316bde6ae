"""Every way in which a trial or a run can break."""
