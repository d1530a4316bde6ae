"""Views -> the geometry of charts: x in percent of the width, y in pixels. No markup, no colours.

Charts have no fixed width, so that their text keeps its size on a phone; curves are drawn in a
stretched box of 1000 units, see :mod:`autoopt_reports.charts.planes`.
"""
