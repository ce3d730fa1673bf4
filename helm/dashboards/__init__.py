"""Grafana dashboards as Python. `python -m helm.dashboards` writes helm/tidemill/dashboards; a test fails when the two differ."""
