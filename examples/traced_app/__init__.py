"""Tasks whose spans and leases go to an OpenTelemetry collector, as one trace."""
