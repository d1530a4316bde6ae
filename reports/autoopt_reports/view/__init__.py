"""Result -> numbers and sentences: pure, no markup, never claiming more than the interval."""

from autoopt_reports.view.page import Report as Report
